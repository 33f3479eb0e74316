//! The kernel side as it was built against what this side takes it to be.

use std::collections::BTreeSet;

use aya_obj::Object;
use iotrace_common::{
    CAST_CALL,
    block::Block,
    flight::{FLIGHT_BITS, Flight},
    site::{FENTRIES, SYSCALLS, Site, SiteSet},
    who::GENERATION_BITS,
    zerocopy::{CALL_BITS, Call, SEND_BITS, Sending, ZerocopyRecord},
};

use super::{OBJECT, load::object};
use crate::kernel::Cast;

/// `BPF_MAP_TYPE_HASH` and `BPF_MAP_TYPE_ARRAY` (include/uapi/linux/bpf.h).
const HASH: u32 = 1;
const ARRAY: u32 = 2;
/// `BPF_F_MMAPABLE`.
const MMAPABLE: u32 = 1 << 10;

fn parsed() -> Object {
    Object::parse(OBJECT).unwrap()
}

#[test]
fn maps_hold_the_shared_types() {
    let object = parsed();
    for (name, kind, size, mmapable) in [
        ("BLOCKS", ARRAY, size_of::<Block>(), true),
        ("ZEROCOPY", ARRAY, size_of::<ZerocopyRecord>(), true),
        ("SITES", ARRAY, size_of::<SiteSet>(), true),
        ("FENTRY_SITES", ARRAY, size_of::<Site>(), true),
        ("SYSCALL_SITES", ARRAY, size_of::<Site>(), true),
        ("TREE", HASH, 1, false),
    ] {
        let map = object.maps.get(name).unwrap_or_else(|| panic!("no map {name}"));
        assert_eq!(map.map_type(), kind, "{name}");
        assert_eq!(map.key_size(), 4, "{name}");
        assert_eq!(map.value_size() as usize, size, "{name}");
        assert_eq!(map.map_flags() & MMAPABLE != 0, mmapable, "{name}");
    }
    let own = (size_of::<Flight>() << FLIGHT_BITS)
        + (4 << GENERATION_BITS)
        + (size_of::<Call>() << CALL_BITS)
        + (size_of::<Sending>() << SEND_BITS);
    assert!((own..own + 128).contains(&(object.maps[".bss"].value_size() as usize)));
    assert_eq!(object.maps["SYSCALL_SITES"].max_entries() as usize, SYSCALLS);
    assert_eq!(object.maps["FENTRY_SITES"].max_entries() as usize, FENTRIES);
}

#[test]
fn programs_are_those_that_are_loaded() {
    let object = parsed();
    let built: BTreeSet<String> = object.programs.into_keys().collect();
    let mut expected: BTreeSet<String> = [
        "import_call",
        "import_return",
        "import_done",
        "import_vector",
        "iter_call",
        "iter_return",
        "whoami",
        "whereis",
        "who_fork",
        "who_exec",
        "who_moved",
        "tree_fork",
        "tree_free",
        "receive_entry",
        "receive_exit",
        "receive_entry_again",
        "receive_exit_again",
        "send_exit_again",
        "insert_entry",
        "insert_exit",
        "zap_entry",
        "zap_exit",
        "send_exit",
        "sent_entry",
        "wait_begin",
        "wait_end",
    ]
    .map(str::to_owned)
    .into();
    for number in 0..FENTRIES {
        expected.extend([format!("iter_entry_{number}"), format!("iter_exit_{number}")]);
    }
    expected.extend((0..SYSCALLS).map(|number| format!("syscall_exit_{number}")));
    assert_eq!(built, expected);
}

#[test]
fn each_cast_is_given_its_function() {
    let calls = |object: &[u8], start: [u8; 4], number: u32| {
        let wanted = |chunk: &&[u8; 8]| chunk[..4] == start && chunk[4..] == number.to_le_bytes();
        object.as_chunks::<8>().0.iter().filter(wanted).count()
    };
    let (helper, kfunc) = ([0x85, 0, 0, 0], [0x85, 0x20, 0, 0]);
    let casts = calls(OBJECT, helper, CAST_CALL);
    assert!(casts > 0);
    let patched = object(Some(Cast { call: 77_777, iter: 1 }));
    assert_eq!((calls(&patched, helper, CAST_CALL), calls(&patched, kfunc, 77_777)), (0, casts));
    assert_eq!(object(None), OBJECT);
}
