//! The kernel side as it was built against what this side takes it to be.

use std::collections::BTreeSet;

use aya_obj::Object;
use iotrace_common::{
    flight::{FLIGHT_BITS, Flight},
    import::ImportRecord,
    iter::IterRecord,
    lost::LostRecord,
    site::{FENTRIES, SYSCALLS, Site, SiteSet},
    who::{GENERATION_BITS, Slot},
};

use super::OBJECT;

/// `BPF_MAP_TYPE_HASH` and `BPF_MAP_TYPE_ARRAY` (include/uapi/linux/bpf.h).
const HASH: u32 = 1;
const ARRAY: u32 = 2;
/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;

fn object() -> Object {
    Object::parse(OBJECT).unwrap()
}

#[test]
fn maps_hold_the_shared_types() {
    let object = object();
    for (name, kind, size, mmapable) in [
        ("IMPORTS", ARRAY, size_of::<ImportRecord>(), true),
        ("ITERS", ARRAY, size_of::<IterRecord>(), true),
        ("LOST", ARRAY, size_of::<LostRecord>(), true),
        ("SITES", ARRAY, size_of::<SiteSet>(), true),
        ("FENTRY_SITES", ARRAY, size_of::<Site>(), true),
        ("SYSCALL_SITES", ARRAY, size_of::<Site>(), true),
        ("PROCESSES", ARRAY, size_of::<Slot>(), true),
        ("TREE", HASH, 1, false),
    ] {
        let map = object.maps.get(name).unwrap_or_else(|| panic!("no map {name}"));
        assert_eq!(map.map_type(), kind, "{name}");
        assert_eq!(map.key_size(), 4, "{name}");
        assert_eq!(map.value_size() as usize, size, "{name}");
        assert_eq!(map.map_flags() & MMAPABLE != 0, mmapable, "{name}");
    }
    let own = (size_of::<Flight>() << FLIGHT_BITS) + (8 << GENERATION_BITS);
    assert!((own..own + 128).contains(&(object.maps[".bss"].value_size() as usize)));
    assert_eq!(object.maps["SYSCALL_SITES"].max_entries() as usize, SYSCALLS);
    assert_eq!(object.maps["FENTRY_SITES"].max_entries() as usize, FENTRIES);
}

#[test]
fn programs_are_those_that_are_loaded() {
    let object = object();
    let built: BTreeSet<String> = object.programs.into_keys().collect();
    let mut expected: BTreeSet<String> = [
        "import_call",
        "import_return",
        "iter_call",
        "iter_return",
        "whoami",
        "whereis",
        "who_fork",
        "who_exec",
        "tree_fork",
        "tree_free",
    ]
    .map(str::to_owned)
    .into();
    for number in 0..FENTRIES {
        expected.extend([format!("iter_entry_{number}"), format!("iter_exit_{number}")]);
    }
    expected.extend((0..SYSCALLS).map(|number| format!("syscall_exit_{number}")));
    assert_eq!(built, expected);
}
