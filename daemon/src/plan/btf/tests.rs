use proptest::prelude::*;

use super::super::fixture::{Types, btf};
use super::*;

fn ask(btf: &Btf<'_>) {
    btf.offset_of("iov_iter", "count");
    btf.offset_of("iov_iter", "__iov.count.x");
    btf.enumeration("iter_type");
    btf.prototypes(&["_copy_to_iter", "", "iov_iter_zero"]);
}

#[test]
fn members_of_anonymous_structs_are_found_as_c_finds_them() {
    let file = btf();
    let btf = Btf::parse(&file).unwrap();
    assert_eq!(btf.offset_of("iov_iter", "iter_type"), Some(0));
    assert_eq!(btf.offset_of("iov_iter", "nofault"), Some(1));
    assert_eq!(btf.offset_of("iov_iter", "__iov"), Some(16));
    assert_eq!(btf.offset_of("iov_iter", "count"), Some(24));
    assert_eq!(btf.offset_of("iov_iter", "iov"), None);
    assert_eq!(btf.offset_of("nothing", "count"), None);
}

#[test]
fn a_path_leads_into_members() {
    let mut types = Types::default();
    let int = types.add("int", (1, 0), 4, &[32]);
    let inner = types.structure("thread_info", 4, &[("flags", int, 64), ("status", int, 128)]);
    let inner = types.add("thread_info_t", (8, 0), inner, &[]);
    types.structure("task_struct", 4, &[("state", int, 0), ("thread_info", inner, 64)]);
    let file = types.file();
    let btf = Btf::parse(&file).unwrap();
    assert_eq!(btf.offset_of("task_struct", "thread_info.status"), Some(24));
    assert_eq!(btf.offset_of("task_struct", "state.status"), None);
}

#[test]
fn a_bit_field_has_an_offset_only_where_a_byte_starts() {
    let mut types = Types::default();
    let int = types.add("int", (1, 0), 4, &[32]);
    let names = [types.name("first"), types.name("second")];
    // kind_flag: the upper byte of the offset is the size in bits.
    types.add("bits", (0x80 | 4, 2), 4, &[names[0], int, 8 << 24 | 8, names[1], int, 3 << 24 | 19]);
    let file = types.file();
    let btf = Btf::parse(&file).unwrap();
    assert_eq!(btf.offset_of("bits", "first"), Some(1));
    assert_eq!(btf.offset_of("bits", "second"), None);
}

#[test]
fn prototypes_are_found_for_a_set_of_names() {
    let file = btf();
    let btf = Btf::parse(&file).unwrap();
    let found = btf.prototypes(&["iov_iter_zero", "import_iovec", "_copy_to_iter"]);
    let zero = found[0].clone().unwrap();
    assert_eq!(zero.returns, Value::Integer);
    let parameters: Vec<_> = zero.parameters.iter().map(|found| (found.name, found.is_iter)).collect();
    assert_eq!(parameters, [("bytes", false), ("i", true)]);
    assert_eq!(found[1], None);
    assert_eq!(found[2].as_ref().map(|found| found.parameters.len()), Some(3));
}

#[test]
fn two_functions_of_one_name_have_no_one_prototype() {
    let mut types = Types::default();
    let int = types.add("int", (1, 0), 4, &[32]);
    types.function("same", int, &[("bytes", int)]);
    types.function("same", int, &[("bytes", int)]);
    types.function("other", int, &[]);
    types.function("other", 0, &[]);
    let file = types.file();
    let btf = Btf::parse(&file).unwrap();
    let found = btf.prototypes(&["same", "other"]);
    assert!(found[0].is_some());
    assert!(found[1].is_none());
}

#[test]
fn a_name_asked_for_twice_is_answered_twice() {
    let file = btf();
    let btf = Btf::parse(&file).unwrap();
    let found = btf.prototypes(&["iov_iter_zero", "nothing", "iov_iter_zero"]);
    assert!(found[0].is_some());
    assert!(found[1].is_none());
    assert_eq!(found[0], found[2]);
}

#[test]
fn of_too_many_parameters_the_first_are_told() {
    let mut types = Types::default();
    let int = types.add("int", (1, 0), 4, &[32]);
    types.function("many", int, &[("a", int); 1000]);
    let file = types.file();
    let found = Btf::parse(&file).unwrap().prototypes(&["many"]);
    assert_eq!(found[0].as_ref().unwrap().parameters.len(), 16);
}

#[test]
fn what_is_longer_than_any_name_is_none() {
    let mut types = Types::default();
    let names = [types.name(&"x".repeat(1024)), types.name(&"y".repeat(1025))];
    types.add("letters", (6, 2), 4, &[names[0], 0, names[1], 1]);
    let file = types.file();
    let members = Btf::parse(&file).unwrap().enumeration("letters").unwrap();
    assert_eq!(members.iter().map(|(name, _)| name.len()).collect::<Vec<_>>(), [1024, 0]);
}

#[test]
fn what_a_function_returns_is_told_apart() {
    let mut types = Types::default();
    let bool_ = types.add("_Bool", (1, 0), 1, &[4 << 24 | 8]);
    let alias = types.add("bool", (8, 0), bool_, &[]);
    let pointer = types.add("", (2, 0), 0, &[]);
    let loop_ = types.add("loop", (8, 0), 4, &[]);
    for (name, returns) in
        [("void", 0), ("bool", alias), ("pointer", pointer), ("loop", loop_), ("none", 999)]
    {
        types.function(name, returns, &[]);
    }
    let file = types.file();
    let btf = Btf::parse(&file).unwrap();
    let found = btf.prototypes(&["void", "bool", "pointer", "loop", "none"]);
    let returns: Vec<_> = found.into_iter().map(|found| found.unwrap().returns).collect();
    assert_eq!(returns, [Value::Void, Value::Bool, Value::Other, Value::Other, Value::Other]);
}

#[test]
fn enums_have_values_of_32_or_64_bits() {
    let mut types = Types::default();
    let names = [types.name("A"), types.name("B")];
    types.add("small", (6, 2), 4, &[names[0], 4, names[1], 8]);
    types.add("large", (19, 1), 8, &[names[0], 1, 2]);
    let file = types.file();
    let btf = Btf::parse(&file).unwrap();
    assert_eq!(btf.enumeration("small"), Some(vec![("A", 4), ("B", 8)]));
    assert_eq!(btf.enumeration("large"), Some(vec![("A", 2 << 32 | 1)]));
}

#[test]
fn nested_structs_without_end_are_given_up() {
    let mut types = Types::default();
    // Each holds the next twice; the last holds the first.
    for number in 1..=40u32 {
        let next = number % 40 + 1;
        let name = if number == 1 { "deep" } else { "" };
        types.structure(name, 4, &[("", next, 0), ("", next, 0)]);
    }
    let file = types.file();
    assert_eq!(Btf::parse(&file).unwrap().offset_of("deep", "count"), None);
}

#[test]
fn a_bad_file_is_refused_with_its_offset() {
    let file = btf();
    let error = |file: &[u8]| Btf::parse(file).err().unwrap().to_string();
    assert_eq!(error(b""), "BTF, offset 0: no BTF magic");
    assert_eq!(error(&[0xeb, 0x9f, 1, 0]), "BTF of a big-endian kernel");
    assert_eq!(error(&file[..10]), "BTF, offset 10: the header is cut off");
    assert_eq!(error(&file[..file.len() - 1]), "BTF, offset 16: the strings are not in the file");
    let mut unknown = file.clone();
    unknown[24 + 7] = 31;
    assert_eq!(error(&unknown), "BTF, offset 24: a kind of type that is not known");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let file = [&[0x9f, 0xeb, 1, 0, 24, 0, 0, 0][..], &bytes].concat();
        if let Ok(btf) = Btf::parse(&file) {
            ask(&btf);
        }
    }

    #[test]
    fn any_change_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        end in prop::option::weighted(0.1, any::<prop::sample::Index>()),
    ) {
        let mut file = btf();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        file.truncate(end.map_or(file.len(), |end| end.index(file.len())));
        if let Ok(btf) = Btf::parse(&file) {
            ask(&btf);
        }
    }
}
