//! The names of cgroups, found by their ids. The only file that walks the tree of cgroups.
//!
//! The id of a version 2 cgroup is the inode number of its directory.

mod path;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirEntryExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

pub use path::{Names, unit};

use crate::printable;

/// Where cgroups of version 2 are, alone or beside those of version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The id of the host's root (kernfs_create_root); that of a namespace's root is another.
pub const ROOT: u64 = 1;

/// Directories that a walk visits; a host has hundreds.
const VISITED: usize = 32 << 10;

/// Names that are remembered, those of vanished cgroups included.
const REMEMBERED: usize = 64 << 10;

/// The least time between two walks.
const PAUSE: Duration = Duration::from_secs(3);

/// What is known of a cgroup. Cloning copies no text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Its path below the mount point, fit to be shown; `cgroup:ID` where it was gone before it was looked for.
    pub path: Arc<str>,
    /// What its path says.
    pub names: Arc<Names>,
}

/// A directory of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// The cgroup's id.
    pub id: u64,
    /// How many steps it is below the root.
    pub level: u32,
    /// Its path below the mount point, `/` for the root.
    pub path: PathBuf,
}

/// The names of cgroups, found when they are asked for and kept when the cgroups are gone.
#[derive(Debug)]
pub struct Cgroups {
    root: PathBuf,
    known: HashMap<u64, Known>,
    /// Asked for since the last walk, in vain.
    missing: HashSet<u64>,
    walked: Option<Instant>,
    walks: u64,
}

#[derive(Debug)]
struct Known {
    cgroup: Cgroup,
    /// The walk that last found it, or after which it was last asked for.
    used: u64,
}

/// Where the tree of version 2 is mounted.
pub fn mount() -> &'static Path {
    let mounted = MOUNTS.iter().find(|mount| Path::new(mount).join("cgroup.controllers").exists());
    Path::new(mounted.unwrap_or(&MOUNTS[0]))
}

impl Cgroups {
    /// Those of this host.
    pub fn new() -> Cgroups {
        Cgroups::below(mount())
    }

    /// Those of the tree whose root is this directory.
    pub fn below(root: &Path) -> Cgroups {
        Cgroups {
            root: root.to_owned(),
            known: HashMap::new(),
            missing: HashSet::new(),
            walked: None,
            walks: 0,
        }
    }

    /// The cgroup of this id. Looks for an unknown one at once, or, if it looked a moment ago, the next time.
    pub fn get(&mut self, id: u64) -> Cgroup {
        if !self.known.contains_key(&id) {
            if self.missing.len() < REMEMBERED {
                self.missing.insert(id);
            }
            if self.walked.is_none_or(|walked| walked.elapsed() >= PAUSE) {
                self.walk();
            }
        }
        match self.known.get_mut(&id) {
            Some(known) => {
                known.used = self.walks;
                known.cgroup.clone()
            }
            None => Cgroup::unknown(id),
        }
    }

    fn walk(&mut self) {
        self.walks += 1;
        for Directory { id, path, .. } in walk(&self.root, Path::new("/")) {
            let known = self.known.entry(id);
            known
                .and_modify(|known| known.used = self.walks)
                .or_insert_with(|| Known { cgroup: Cgroup::at(&path), used: self.walks });
        }
        // An id is never given again: what is not there by now will not come. What is there goes before it.
        for id in self.missing.drain() {
            self.known
                .entry(id)
                .or_insert_with(|| Known { cgroup: Cgroup::unknown(id), used: self.walks - 1 });
        }
        if self.known.len() > REMEMBERED {
            let mut uses: Vec<u64> = self.known.values().map(|known| known.used).collect();
            let (_, &mut newest_forgotten, _) = uses.select_nth_unstable(self.known.len() - REMEMBERED);
            self.known.retain(|_, known| known.used > newest_forgotten);
        }
        self.walked = Some(Instant::now());
    }
}

impl Default for Cgroups {
    fn default() -> Cgroups {
        Cgroups::new()
    }
}

impl Cgroup {
    fn at(path: &Path) -> Cgroup {
        let bytes = path.as_os_str().as_bytes();
        Cgroup { path: printable::path(bytes).into(), names: Arc::new(Names::of(bytes)) }
    }

    fn unknown(id: u64) -> Cgroup {
        Cgroup { path: format!("cgroup:{id}").into(), names: Arc::default() }
    }
}

/// The cgroup at a path below the root, and all cgroups below it, the nearest first; none if it is not there.
pub fn walk(root: &Path, start: &Path) -> impl Iterator<Item = Directory> {
    let mut queue = VecDeque::new();
    if let Some(directory) = directory(root, start) {
        queue.push_back(directory);
    }
    let root = root.to_owned();
    let next = move || {
        let directory = queue.pop_front()?;
        // What was reached but cannot be read has gone in the meantime.
        let entries = fs::read_dir(on_disk(&root, &directory.path)).into_iter().flatten().flatten();
        for entry in entries {
            if queue.len() < VISITED && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                queue.push_back(Directory {
                    id: entry.ino(),
                    level: directory.level + 1,
                    path: directory.path.join(entry.file_name()),
                });
            }
        }
        Some(directory)
    };
    std::iter::from_fn(next).take(VISITED)
}

/// The cgroup at a path below the root; `None` if it is not there.
pub fn directory(root: &Path, path: &Path) -> Option<Directory> {
    let found = fs::metadata(on_disk(root, path)).ok().filter(fs::Metadata::is_dir)?;
    let path = Path::new("/").join(path);
    let level = path.components().count() - 1;
    Some(Directory { id: found.ino(), level: u32::try_from(level).ok()?, path })
}

/// `join` would take an absolute path for the whole.
fn on_disk(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::OsStr, process};

    /// A tree of directories that stands for one of cgroups.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str, paths: &[&[u8]]) -> Tree {
            let root = std::env::temp_dir().join(format!("iotrace-{name}-{}", process::id()));
            let tree = Tree(root);
            for path in paths {
                fs::create_dir_all(tree.0.join(OsStr::from_bytes(path))).unwrap();
            }
            tree
        }

        fn id(&self, path: &[u8]) -> u64 {
            fs::metadata(self.0.join(OsStr::from_bytes(path))).unwrap().ino()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _gone_already = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn names_are_found_by_id_and_outlive_their_cgroup() {
        let tree = Tree::new("found", &[b"system.slice/a.service/sub", b"evil\x1b[2J\xff"]);
        fs::write(tree.0.join("cgroup.procs"), "1").unwrap();
        let mut cgroups = Cgroups::below(&tree.0);
        let (root, sub, evil) =
            (tree.id(b""), tree.id(b"system.slice/a.service/sub"), tree.id(b"evil\x1b[2J\xff"));
        assert_eq!(&*cgroups.get(root).path, "/");
        assert_eq!(&*cgroups.get(sub).path, "/system.slice/a.service/sub");
        assert_eq!(cgroups.get(sub).names.unit, "a.service");
        assert_eq!(&*cgroups.get(evil).path, "/evil\\x1b[2J\\Xff");
        fs::remove_dir_all(tree.0.join("system.slice")).unwrap();
        cgroups.walked = None;
        assert_eq!(&*cgroups.get(12).path, "cgroup:12");
        assert_eq!(cgroups.walks, 2);
        assert_eq!(&*cgroups.get(sub).path, "/system.slice/a.service/sub");
    }

    #[test]
    fn unknown_ids_do_not_make_it_walk_all_the_time() {
        let tree = Tree::new("unknown", &[b"a"]);
        let mut cgroups = Cgroups::below(&tree.0);
        for id in 0..1000 {
            cgroups.get(id << 40);
        }
        assert_eq!(cgroups.walks, 1);
        // The next walk settles all of them.
        cgroups.walked = None;
        cgroups.get(5 << 50);
        cgroups.walked = None;
        for id in 0..1000 {
            cgroups.get(id << 40);
        }
        assert_eq!(cgroups.walks, 2);
        assert!(cgroups.missing.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let tree = Tree::new("bounded", &[b"a.service"]);
        let mut cgroups = Cgroups::below(&tree.0);
        for round in 0..3 {
            for id in 0..REMEMBERED as u64 {
                cgroups.missing.insert(round << 50 | id << 30);
            }
            cgroups.walk();
            assert!(cgroups.known.len() <= REMEMBERED);
        }
        let id = tree.id(b"a.service");
        assert_eq!(cgroups.get(id).names.unit, "a.service", "what is there stays");
    }

    #[test]
    fn a_walk_begins_where_it_is_told_and_counts_levels() {
        let tree = Tree::new("walk", &[b"a/b/c", b"d"]);
        let found = |start: &str| -> Vec<(u32, PathBuf)> {
            walk(&tree.0, Path::new(start)).map(|it| (it.level, it.path)).collect()
        };
        assert_eq!(found("/a"), [(1, "/a".into()), (2, "/a/b".into()), (3, "/a/b/c".into())]);
        assert_eq!(found("a/b"), [(2, "/a/b".into()), (3, "/a/b/c".into())]);
        assert_eq!(found("/").len(), 5);
        assert_eq!(found("/")[0], (0, "/".into()));
        assert_eq!(found("/x"), []);
        assert_eq!(directory(&tree.0, Path::new("a")).unwrap().id, tree.id(b"a"));
    }
}
