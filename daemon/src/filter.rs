//! Which processes count: from what the user names to what the kernel side compares.

use std::{
    ffi::OsStr,
    fs,
    path::{Component, Path, PathBuf},
};

use thiserror::Error;

use crate::{cgroups, cli::Only, pids, printable};

/// Processes that the kernel side can tell by their ids.
pub const PIDS: usize = 8;

/// What a process must be to count; the default asks for nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// One of these thread groups, at most [`PIDS`]; any if there is none.
    pub pids: Vec<u32>,
    /// Of this name, NUL-padded.
    pub comm: Option<[u8; 16]>,
    /// In the cgroup of this id, so many steps below the root, or below it.
    pub cgroup: Option<(u64, u32)>,
    /// Of this user.
    pub uid: Option<u32>,
}

/// Why what the user names cannot be found; each with what to do.
#[derive(Debug, Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum FilterError {
    #[error(
        "{0} processes, and at most {PIDS} can be told by their ids; give the --cgroup or --unit they are in"
    )]
    Pids(usize),
    #[error("no process {0}; `ps -e` lists them")]
    NoProcess(u32),
    #[error("{id} is a thread of process {group}; give --pid {group}")]
    Thread { id: u32, group: u32 },
    #[error("no cgroups of version 2 under {}; boot with systemd.unified_cgroup_hierarchy=1, or give --pid or --user", shown(.0))]
    NoCgroups(PathBuf),
    #[error("{} is the root of a cgroup namespace, and iotrace must see the host's; run it as `nsenter -C -t 1`", shown(.0))]
    Namespace(PathBuf),
    #[error("no cgroup {} under {}; `systemd-cgls` lists them", shown(.path), shown(.mount))]
    NoCgroup { path: PathBuf, mount: PathBuf },
    #[error("no unit {unit} under {}; `systemctl list-units {unit}` tells whether it runs", shown(.below), unit = shown(Path::new(.unit)))]
    NoUnit { unit: String, below: PathBuf },
    #[error("{number} units {unit}, such as {} and {}; choose with --cgroup", shown(&.paths.0), shown(&.paths.1), unit = shown(Path::new(.unit)))]
    Units { unit: String, number: usize, paths: (PathBuf, PathBuf) },
    #[error("no user {user} in /etc/passwd; give the number that `id -u {user}` prints", user = shown(Path::new(.0)))]
    NoUser(String),
    #[error("no user has the number {0}; the highest is 4294967294")]
    NoUid(String),
}

/// What the user gave, on one line and harmless to a terminal.
fn shown(path: &Path) -> String {
    printable::path(path.as_os_str().as_encoded_bytes())
}

impl Filter {
    /// Finds what the options name.
    ///
    /// # Errors
    /// What is not there, or is there more than once.
    pub fn resolve(only: &Only) -> Result<Filter, FilterError> {
        let mut pids = only.pids.clone();
        pids.sort_unstable();
        pids.dedup();
        if pids.len() > PIDS {
            return Err(FilterError::Pids(pids.len()));
        }
        for &id in &pids {
            match pids::thread_group(id) {
                None => return Err(FilterError::NoProcess(id)),
                Some(group) if group != id => return Err(FilterError::Thread { id, group }),
                Some(_) => {}
            }
        }
        Ok(Filter {
            pids,
            comm: only.comm.as_deref().map(comm),
            cgroup: cgroup(only, cgroups::mount(), cgroups::ROOT)?,
            uid: only.user.as_deref().map(user).transpose()?,
        })
    }
}

/// Cut to what the kernel keeps.
fn comm(name: &str) -> [u8; 16] {
    let mut comm = [0; 16];
    for (place, byte) in comm[..15].iter_mut().zip(name.bytes()) {
        *place = byte;
    }
    comm
}

/// `host` is the id of the host's root.
fn cgroup(only: &Only, mount: &Path, host: u64) -> Result<Option<(u64, u32)>, FilterError> {
    if only.cgroup.is_none() && only.unit.is_none() {
        return Ok(None);
    }
    if !mount.join("cgroup.controllers").exists() {
        return Err(FilterError::NoCgroups(mount.to_owned()));
    }
    // The kernel side counts steps from the root of the host.
    if cgroups::directory(mount, Path::new("")).is_none_or(|root| root.id != host) {
        return Err(FilterError::Namespace(mount.to_owned()));
    }
    let given = only.cgroup.as_deref().unwrap_or(mount);
    // Also as /proc/PID/cgroup shows it, from the mount point on.
    let path = given.strip_prefix(mount).or_else(|_| given.strip_prefix("/")).unwrap_or(given);
    let inside =
        !given.as_os_str().is_empty() && path.components().all(|it| !matches!(it, Component::ParentDir));
    let found = inside.then(|| cgroups::directory(mount, path)).flatten();
    let found =
        found.ok_or_else(|| FilterError::NoCgroup { path: given.to_owned(), mount: mount.to_owned() })?;
    let Some(unit) = &only.unit else {
        return Ok(Some((found.id, found.level)));
    };

    // As `systemctl` does.
    let unit = if cgroups::unit(unit).is_some() { unit.clone() } else { format!("{unit}.service") };
    let name = |path: &Path| path.file_name().and_then(OsStr::to_str).and_then(cgroups::unit) == Some(&unit);
    let units: Vec<_> = cgroups::walk(mount, &found.path).filter(|it| name(&it.path)).collect();
    match &units[..] {
        [] => Err(FilterError::NoUnit { unit, below: mount.join(path).components().collect() }),
        [one] => Ok(Some((one.id, one.level))),
        [first, second, ..] => {
            let paths = (first.path.clone(), second.path.clone());
            Err(FilterError::Units { unit, number: units.len(), paths })
        }
    }
}

fn user(name: &str) -> Result<u32, FilterError> {
    // The highest number stands for no user.
    match name.parse() {
        Ok(uid) if uid != u32::MAX => Ok(uid),
        _ if name.bytes().all(|byte| byte.is_ascii_digit()) => Err(FilterError::NoUid(name.to_owned())),
        _ => {
            let passwd = fs::read("/etc/passwd").unwrap_or_default();
            uid(&String::from_utf8_lossy(&passwd), name).ok_or_else(|| FilterError::NoUser(name.to_owned()))
        }
    }
}

/// The number of a user in the text of /etc/passwd.
fn uid(passwd: &str, name: &str) -> Option<u32> {
    let mut fields = passwd
        .lines()
        .map(|line| line.split(':'))
        .find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    fields.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::fs::MetadataExt as _, process};

    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let tree = Tree(std::env::temp_dir().join(format!("iotrace-filter-{name}-{}", process::id())));
            for path in [
                "system.slice/nginx.service/worker",
                "system.slice/_cpu.service",
                "user.slice/user-1.slice/user@1.service/app.slice/mail.service",
                "user.slice/user-2.slice/user@2.service/app.slice/mail.service",
            ] {
                fs::create_dir_all(tree.0.join(path)).unwrap();
            }
            fs::write(tree.0.join("cgroup.controllers"), "").unwrap();
            tree
        }

        fn of(&self, cgroup: Option<&str>, unit: Option<&str>) -> Result<Option<(u64, u32)>, String> {
            let (cgroup, unit) = (cgroup.map(PathBuf::from), unit.map(String::from));
            let only = Only { cgroup, unit, ..Only::default() };
            super::cgroup(&only, &self.0, self.root()).map_err(|error| error.to_string())
        }

        fn root(&self) -> u64 {
            fs::metadata(&self.0).unwrap().ino()
        }

        fn at(&self, path: &str, level: u32) -> Result<Option<(u64, u32)>, String> {
            Ok(Some((fs::metadata(self.0.join(path)).unwrap().ino(), level)))
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _gone_already = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn cgroups_are_found_however_they_are_written() {
        let tree = Tree::new("paths");
        let nginx = tree.at("system.slice/nginx.service", 2);
        let absolute = tree.0.join("system.slice/nginx.service");
        for path in ["system.slice/nginx.service", "/system.slice/nginx.service/", absolute.to_str().unwrap()]
        {
            assert_eq!(tree.of(Some(path), None), nginx, "{path}");
        }
        for root in ["/", ".", tree.0.to_str().unwrap()] {
            assert_eq!(tree.of(Some(root), None), tree.at("", 0), "{root}");
        }
        assert_eq!(tree.of(None, None), Ok(None));
        for path in ["x", "", "..", "system.slice/../..", "/etc", "cgroup.controllers"] {
            let error = tree.of(Some(path), None).unwrap_err();
            assert!(error.starts_with(&format!("no cgroup {path} under /")), "{error}");
        }
    }

    #[test]
    fn units_are_found_where_they_are() {
        let tree = Tree::new("units");
        for unit in ["nginx", "nginx.service"] {
            assert_eq!(tree.of(None, Some(unit)), tree.at("system.slice/nginx.service", 2));
        }
        assert_eq!(tree.of(None, Some("cpu.service")), tree.at("system.slice/_cpu.service", 2));
        assert_eq!(tree.of(None, Some("system.slice")), tree.at("system.slice", 1));
        assert_eq!(
            tree.of(Some("user.slice/user-2.slice"), Some("mail")),
            tree.at("user.slice/user-2.slice/user@2.service/app.slice/mail.service", 5)
        );
        let several = tree.of(None, Some("mail")).unwrap_err();
        assert!(several.starts_with("2 units mail.service, such as /user.slice/"), "{several}");
        let none = tree.of(Some("user.slice"), Some("nginx")).unwrap_err();
        assert_eq!(
            none,
            format!(
                "no unit nginx.service under {}/user.slice; `systemctl list-units nginx.service` tells whether it runs",
                tree.0.display()
            )
        );
        let none = tree.of(None, Some("x")).unwrap_err();
        assert!(none.starts_with(&format!("no unit x.service under {}; ", tree.0.display())), "{none}");
        let only = Only { unit: Some("nginx".into()), ..Only::default() };
        let namespace = cgroup(&only, &tree.0, tree.root() + 1).unwrap_err();
        assert_eq!(namespace, FilterError::Namespace(tree.0.clone()));
        fs::remove_file(tree.0.join("cgroup.controllers")).unwrap();
        assert!(tree.of(None, Some("nginx")).unwrap_err().starts_with("no cgroups of version 2 under /"));
    }

    #[test]
    fn users_go_by_name_and_number() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/var/www:\nbroken\nodd:x:-1:0\n";
        assert_eq!(["root", "www-data", "broken", "odd", "x", ""].map(|name| uid(passwd, name)), {
            [Some(0), Some(33), None, None, None, None]
        });
        assert_eq!(user("1000"), Ok(1000));
        for none in ["4294967295", "99999999999999999999"] {
            assert_eq!(user(none), Err(FilterError::NoUid(none.to_owned())));
        }
        let none = user("a\nb\u{1b}[31m").unwrap_err().to_string();
        assert!(none.starts_with("no user a\\x0ab\\x1b[31m in /etc/passwd; give the number"), "{none}");
    }

    #[test]
    fn processes_must_be_there() {
        let own = process::id();
        let of = |pids: &[u32]| Filter::resolve(&Only { pids: pids.to_vec(), ..Only::default() });
        assert_eq!(of(&[own, own]).unwrap().pids, [own]);
        assert_eq!(of(&[own, u32::MAX]), Err(FilterError::NoProcess(u32::MAX)));
        assert_eq!(of(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), Err(FilterError::Pids(9)));
        let thread = FilterError::Thread { id: 12, group: 10 };
        assert_eq!(thread.to_string(), "12 is a thread of process 10; give --pid 10");
        assert_eq!(Filter::resolve(&Only::default()), Ok(Filter::default()));
    }

    #[test]
    fn a_name_is_padded_and_cut() {
        assert_eq!(&comm("dd"), b"dd\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(&comm("0123456789abcdef"), b"0123456789abcde\0");
    }
}
