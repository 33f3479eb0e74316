//! The kernel's types.

use iotrace::plan::btf::Btf;
use proptest::prelude::*;

use crate::fixture::{Types, btf};
use crate::meter::bounded;
use crate::mutate::{changed, changes, every};
use crate::{cases, is_located};

const NAMES: [&str; 5] = ["_copy_to_iter", "", "iov_iter_zero", "simple_copy_to_iter", "iov_iter_zero"];

fn check(file: &[u8]) {
    match bounded(file.len() + 64, || Btf::parse(file)) {
        Ok(btf) => ask(&btf, file.len()),
        Err(error) if error.to_string() == "BTF of a big-endian kernel" => {}
        Err(error) => {
            is_located(&error.to_string(), "BTF", file.len());
        }
    }
}

/// All that is asked of the types of a kernel.
fn ask(btf: &Btf<'_>, size: usize) {
    for path in ["count", "iter_type", "type", "__ubuf_iovec", "__iov.count.x", "", "a..b"] {
        bounded(0, || btf.offset_of("iov_iter", path));
    }
    if let Some(members) = bounded(10 * size, || btf.enumeration("iter_type")) {
        assert!(members.len() * 8 <= size);
    }
    let prototypes = bounded(1024 * NAMES.len(), || btf.prototypes(&NAMES));
    assert_eq!(prototypes.len(), NAMES.len());
    assert!(prototypes.iter().flatten().all(|prototype| prototype.parameters.len() <= 16));
}

#[test]
fn every_small_change_is_read_or_refused() {
    every(&btf(), check);
}

#[test]
fn types_that_refer_to_themselves_and_each_other_are_given_up() {
    // Every kind, as a reference to itself, to the next, and to what is not there.
    for kind in 0..32u32 {
        for step in [0, 1, 2, u32::MAX - 8, u32::MAX] {
            let mut types = Types::default();
            let name = types.name("iov_iter");
            for number in 1..9u32 {
                let next = number.wrapping_add(step);
                let rest = match kind {
                    1 | 14 | 17 => vec![next],
                    3 => vec![next; 3],
                    4 | 5 | 15 | 19 => vec![0, next, 8],
                    6 | 13 => vec![0, next],
                    _ => vec![],
                };
                let count = usize::from(matches!(kind, 4..=6 | 13 | 15 | 19));
                types.add(if number == 1 { "iov_iter" } else { "" }, (kind, count), next, &rest);
                types.structure("iov_iter", 4, &[("", number, 0), ("other", next, u32::MAX)]);
                types.function("_copy_to_iter", next, &[("i", next), ("bytes", number)]);
            }
            assert_ne!(name, 0);
            check(&types.file());
        }
    }
}

#[test]
fn counts_that_are_too_high_are_refused_where_they_stand() {
    for kind in 0..32u32 {
        let mut types = Types::default();
        types.add("int", (1, 0), 4, &[32]);
        types.add("much", (kind, 0xffff), 4, &[1, 2, 3]);
        let file = types.file();
        check(&file);
        if let Err(error) = Btf::parse(&file) {
            assert!((24 + 16..file.len()).contains(&is_located(&error.to_string(), "BTF", file.len())));
        }
    }
}

#[test]
fn sections_that_overlap_or_end_outside_are_read_or_refused() {
    let file = btf();
    let edges = [0, 1, 2, 12, 24, file.len() as u32 - 24, file.len() as u32, u32::MAX - 24, u32::MAX];
    for field in [4, 8, 12, 16, 20] {
        for first in edges {
            for other in [4, 8, 12, 16, 20] {
                for second in edges {
                    let mut file = file.clone();
                    file[field..field + 4].copy_from_slice(&first.to_le_bytes());
                    file[other..other + 4].copy_from_slice(&second.to_le_bytes());
                    check(&file);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn any_change_is_read_or_refused(changes in changes()) {
        check(&changed(&btf(), &changes));
    }

    /// Valid as a file, whatever its types mean.
    #[test]
    fn any_types_are_read(
        types in prop::collection::vec(
            (0u32..20, 0usize..4, 0u32..12, prop::collection::vec(0u32..40, 12), any::<bool>(), 0usize..5),
            0..12,
        )
    ) {
        let names = ["", "iov_iter", "iter_type", "_copy_to_iter", "count"];
        let mut written = Types::default();
        for name in names {
            written.name(name);
        }
        for (kind, count, value, words, flag, name) in types {
            let width = match kind {
                4 | 5 | 15 | 19 => 3,
                6 | 13 => 2,
                _ => 0,
            };
            let rest = match kind {
                1 | 14 | 17 => &words[..1],
                3 => &words[..3],
                _ => &words[..width * count],
            };
            written.add(names[name], (kind | u32::from(flag) << 7, count), value, rest);
        }
        check(&written.file());
    }
}
