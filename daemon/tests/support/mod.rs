//! What the tests of the view share: a snapshot made by hand, and golden files.
#![allow(dead_code, reason = "each test uses a part")]

use std::{collections::BTreeMap, env, fs, path::PathBuf, time::Duration};

use iotrace::{
    own::{self, Own},
    snapshot::{Governed, Import, Iter, Passed, Probe, Process, Snapshot, State, Zerocopy},
};
use iotrace_common::{
    import::{MAX_SEGMENTS, Path, SEGMENT_BUCKETS, segment_bucket},
    iter::{NANOS_BUCKETS, nanos_bucket},
    lost::Lost,
};

/// A file of the repository.
pub fn repository(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(path)
}

/// Compares with a file of the repository; `IOTRACE_BLESS=1` writes it anew.
pub fn golden(path: &str, found: &str) {
    let file = repository(path);
    if env::var_os("IOTRACE_BLESS").is_some_and(|value| value == "1") {
        fs::write(&file, found).unwrap();
    }
    let wanted = fs::read_to_string(&file).unwrap_or_default();
    let mut lines = wanted.lines().zip(found.lines()).enumerate();
    if let Some((line, (wanted, found))) = lines.find(|(_, (wanted, found))| wanted != found) {
        panic!(
            "{path}:{}:\n wanted {wanted}\n  found {found}\nIOTRACE_BLESS=1 cargo test rewrites it",
            line + 1
        );
    }
    assert!(wanted == found, "{path} has another length; IOTRACE_BLESS=1 cargo test rewrites it");
}

/// An import by this path: calls by segments, then bytes, errors and allocated.
fn import(path: Path, calls: &[(u32, u64)], [bytes, errors, allocated]: [u64; 3]) -> Import {
    let mut row = Import {
        path: path.name().into(),
        buckets: [0; SEGMENT_BUCKETS],
        segments: 0,
        allocated,
        bytes,
        errors,
    };
    for &(segments, number) in calls {
        row.buckets[segment_bucket(segments)] += number;
        // As the kernel side: what the kernel refuses is no sum.
        row.segments += if segments > MAX_SEGMENTS { 0 } else { u64::from(segments) * number };
    }
    row
}

/// Calls by duration in nanoseconds, then asked and short; each call does what it was asked, but the short.
fn iter(function: &str, kind: &str, calls: &[(u64, u64)], asked: u64, short: u64) -> Iter {
    let mut row = Iter {
        function: function.into(),
        kind: kind.into(),
        calls: 0,
        asked,
        bytes: asked - short,
        short,
        segments: 0,
        nanos: 0,
        buckets: [0; NANOS_BUCKETS],
    };
    for &(nanos, number) in calls {
        row.calls += number;
        row.nanos += nanos * number;
        row.segments += 2 * number;
        row.buckets[nanos_bucket(nanos)] += number;
    }
    row
}

fn probe(target: &str, site: &str, mechanism: &str, state: State, reason: &str) -> Probe {
    Probe {
        target: target.into(),
        site: site.into(),
        mechanism: mechanism.into(),
        state,
        kprobes: Vec::new(),
        reason: reason.into(),
    }
}

/// Imports, all with one segment, and walker calls by kind.
fn process(pid: u32, comm: &str, cgroup: [&str; 3], imports: u64, iters: &[(&str, u64)]) -> Process {
    let [path, unit, container] = cgroup.map(String::from);
    let map = |bytes: u64| iters.iter().map(|&(kind, calls)| (kind.to_owned(), calls * bytes)).collect();
    Process {
        pid: (pid > 0).then_some(pid),
        comm: comm.into(),
        cgroup: path,
        cgroup_id: u64::from(pid),
        unit,
        container,
        imports,
        single: imports,
        segments: imports,
        bytes: imports * 512,
        errors: imports / 1000,
        iter_calls: map(1),
        iter_bytes: map(4096),
        // The first also receives without copies.
        zerocopy_calls: if pid == 1203 { 300 } else { 0 },
        zerocopy_mapped: if pid == 1203 { 300 << 16 } else { 0 },
        zerocopy_copied: if pid == 1203 { 4000 } else { 0 },
    }
}

fn processes() -> Vec<Process> {
    const DOCKER: &str = "docker-4c01db0b339c4d1f8a9b3b3b0a1c2d3e4f5061728394a5b6c7d8e9f00112233f.scope";
    let docker = format!("/system.slice/{DOCKER}");
    vec![
        process(
            1203,
            "nginx",
            ["/system.slice/nginx.service", "nginx.service", ""],
            9_000,
            &[("ubuf", 12_000), ("iovec", 9_000)],
        ),
        process(77, "db \"x\\\\y\"", [&docker, DOCKER, "4c01db0b339c"], 8_000, &[]),
        process(4, "kworker/0:1", ["/", "", ""], 0, &[("bvec", 7)]),
        process(0, Process::OTHER, ["", "", ""], 46, &[("ubuf", 5), ("kvec", 1)]),
    ]
}

/// Ten seconds of a host that does 10,000 readv with one segment, 5,000 with three, 2,000 writev with nine.
pub fn snapshot() -> Snapshot {
    let imports = Path::ALL.iter().map(|&path| match path {
        Path::Readv => import(path, &[(1, 10_000), (3, 5_000)], [12_800_000, 0, 0]),
        Path::Writev => import(path, &[(9, 2_000)], [9_216_000, 0, 2_000]),
        Path::Sendmsg => import(path, &[(0, 3), (1, 40), (1024, 1), (2000, 1)], [123_456, 2, 2]),
        Path::Vmsplice => import(path, &[(1, 1)], [4096, 0, 0]),
        path => import(path, &[], [0, 0, 0]),
    });
    let mut iters = Vec::new();
    for function in ["copy_to_iter", "copy_from_iter", "copy_page_to_iter"] {
        for kind in ["ubuf", "iovec", "bvec", "kvec", "other"] {
            iters.push(match (function, kind) {
                ("copy_to_iter", "ubuf") => iter(function, kind, &[(40, 5), (64, 2), (65, 3)], 5_120, 12),
                ("copy_to_iter", "iovec") => {
                    iter(function, kind, &[(300, 10_000), (90_000, 3), (17_000_000, 1)], 12_800_000, 0)
                }
                ("copy_page_to_iter", "bvec") => iter(function, kind, &[(1024, 7)], 28_672, 0),
                // It never returned.
                ("copy_from_iter", "kvec") => {
                    Iter { calls: 1, bytes: 0, ..iter(function, kind, &[], 512, 0) }
                }
                _ => iter(function, kind, &[], 0, 0),
            });
        }
    }
    Snapshot {
        seconds: 10.0,
        imports: imports.collect(),
        iters,
        lost: Lost::ALL.iter().map(|&it| (it.name().to_owned(), u64::from(it == Lost::Flight) * 4)).collect(),
        zerocopy: Zerocopy {
            calls: 300,
            errors: 2,
            mapped: 300 << 16,
            copied: 4000,
            timed: 300,
            nanos: 9_000_000,
            inserts: 600,
            insert_nanos: 4_800_000,
            zaps: 300,
            zap_nanos: 960_000,
            waits: 7,
            wait_nanos: 21_000,
            sends: 200,
            completed: 190,
            fell_back: 38,
        },
        processes: processes(),
        governed: Some(Governed {
            budget: 0.02,
            costs: [("import", 120e-9), ("jump", 300e-9), ("trap", 700e-9)]
                .map(|(mechanism, cost)| (mechanism.to_owned(), cost))
                .into(),
            seconds: 0.125,
            functions: [("copy_to_iter".to_owned(), Passed { seen: 10_014.0, estimated: 250_014.0 })].into(),
            gave_up: false,
        }),
        verified: [("readv".to_owned(), true), ("vmsplice".to_owned(), false)].into(),
        probes: vec![
            probe("import_iovec", "vfs_readv+0xcf", "trap", State::Attached, ""),
            probe("import_iovec", "vfs_writev+0xbf", "trap", State::Attached, ""),
            probe("import_iovec", "__do_sys_vmsplice+0x8f", "none", State::Unavailable, "notrace"),
            probe("_copy_to_iter", "simple_copy_to_iter", "fentry", State::Attached, ""),
            probe("_copy_to_iter", "tun_do_read+0x2d0 [tun]", "trap", State::Pending, ""),
            probe("_copy_to_iter", "hid+0x9 \"odd\\name\"", "trap", State::Failed, "EINVAL"),
            probe("copy_page_to_iter", "filemap_read+0x1f3", "trap", State::Attached, ""),
            probe("copy_page_to_iter", "twice+0x10", "trap", State::Attached, ""),
            probe("copy_page_to_iter", "twice+0x10", "trap", State::Attached, ""),
            probe("iov_iter_zero", "", "none", State::Unavailable, "no call to it was found"),
            probe("tcp_zerocopy_receive", "tcp_zerocopy_receive", "fentry", State::Attached, ""),
            probe("vm_insert_pages", "vm_insert_pages", "fentry", State::Attached, ""),
            probe("zap_page_range", "zap_page_range", "fentry", State::Attached, ""),
            probe("msg_zerocopy_realloc", "msg_zerocopy_realloc", "fexit", State::Attached, ""),
            probe("msg_zerocopy_callback", "msg_zerocopy_callback", "fentry", State::Attached, ""),
            probe("contention_begin", "contention_begin", "tracepoint", State::Attached, ""),
            probe("contention_end", "contention_end", "tracepoint", State::Attached, ""),
        ],
    }
}

/// What a daemon may have taken by then.
pub fn own() -> Own {
    let seconds = |millis| Duration::from_millis(millis);
    Own {
        read: Duration::from_micros(125),
        maps: [("BLOCKS", 200_704), ("HANDOVERS", 538_904)]
            .map(|(name, bytes)| (name.to_owned(), bytes))
            .into(),
        start: [("read", seconds(120)), ("plan", seconds(80)), ("load", seconds(45)), ("hot", seconds(700))]
            .into(),
        release: "6.12.118+deb13-amd64".to_owned(),
        process: own::Process {
            cpu: Some(seconds(1_250)),
            resident: Some(12_345_344),
            mapped: Some(22_335_488),
            threads: Some(3),
            open_files: Some(291),
            most_files: Some(4_096),
            started: Some(Duration::from_secs(1_700_000_042)),
        },
    }
}

/// A host as large as those of docs/kernels.md: so many functions, kinds and places has 7.3. Of its pairs of function and
/// kind `pairs` occur; so many processes have a row, every second of which imports, each walking two kinds.
pub fn host(pairs: usize, processes: u32) -> (Snapshot, Own) {
    const KINDS: [&str; 8] = ["ubuf", "iovec", "bvec", "kvec", "folioq", "xarray", "discard", "other"];
    const FUNCTIONS: usize = 19;
    const TARGETS: usize = 29;
    const SITES: usize = 181;
    let mut snapshot = snapshot();
    let governed = snapshot.governed.as_mut().unwrap();
    let passed = governed.functions["copy_to_iter"];
    governed.functions = (0..FUNCTIONS).map(|function| (format!("f{function}"), passed)).collect();
    let calls = snapshot.iters.iter().find(|row| row.calls > 0).unwrap().clone();
    snapshot.iters = (0..FUNCTIONS * KINDS.len())
        .map(|pair| {
            let (function, kind) = (format!("f{}", pair / KINDS.len()), KINDS[pair % KINDS.len()].to_owned());
            Iter { function, kind, calls: u64::from(pair < pairs), ..calls.clone() }
        })
        .collect();
    let other = snapshot.processes.pop().unwrap();
    let row = |pid: u32| Process {
        pid: Some(pid),
        imports: u64::from(pid % 2),
        iter_calls: KINDS[..2].iter().map(|&kind| (kind.to_owned(), 1)).collect(),
        iter_bytes: KINDS[..2].iter().map(|&kind| (kind.to_owned(), 1)).collect(),
        ..Process::default()
    };
    snapshot.processes = (1..=processes).map(row).chain([other]).collect();
    let site = snapshot.probes[0].clone();
    let probe = |at: usize| Probe {
        target: format!("t{}", at * TARGETS / SITES),
        site: format!("s{at}"),
        ..site.clone()
    };
    snapshot.probes = (0..SITES).map(probe).collect();
    snapshot.verified = snapshot.imports.iter().map(|row| (row.path.clone(), true)).collect();
    let mut own = own();
    own.maps = (0..11).map(|map| (format!("m{map}"), 8192)).collect();
    own.start.insert("rest", Duration::from_secs(3));
    (snapshot, own)
}

/// The same host, where nothing happened and everything is attached.
pub fn idle() -> Snapshot {
    let mut snapshot = snapshot();
    snapshot.imports = Path::ALL.iter().map(|&path| import(path, &[], [0, 0, 0])).collect();
    snapshot.iters = snapshot.iters.iter().map(|row| iter(&row.function, &row.kind, &[], 0, 0)).collect();
    snapshot.lost.values_mut().for_each(|events| *events = 0);
    snapshot.processes = vec![process(0, Process::OTHER, ["", "", ""], 0, &[])];
    snapshot.probes.retain(|probe| probe.state == State::Attached);
    snapshot
}

/// Every series of an exposition: its name and labels, and its value. Fails at what the format forbids.
pub fn series(text: &str) -> BTreeMap<(String, Labels), f64> {
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap_or_else(|| panic!("{line}")));
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest),
            None => (Labels::new(), rest),
        };
        let value: f64 = value.trim_start().parse().unwrap_or_else(|_| panic!("{line}"));
        assert_eq!(found.insert((name.to_owned(), labels), value), None, "twice: {line}");
    }
    found
}

/// Labels and their values.
pub type Labels = BTreeMap<String, String>;

/// Labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> (Labels, &str) {
    let mut labels = Labels::new();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return (labels, rest);
        }
        let (name, quoted) = rest.split_once("=\"").expect("a label has a value");
        let mut value = String::new();
        let mut bytes = quoted.char_indices();
        let end = loop {
            match bytes.next().expect("a value ends") {
                (end, '"') => break end,
                (_, '\\') => match bytes.next().expect("an escape has two characters").1 {
                    'n' => value.push('\n'),
                    plain @ ('"' | '\\') => value.push(plain),
                    other => panic!("\\{other} is no escape"),
                },
                (_, plain) => value.push(plain),
            }
        };
        assert_eq!(labels.insert(name.to_owned(), value), None, "{name} twice");
        rest = &quoted[end + 1..];
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
}
