//! The headers of /proc/kcore.

use iotrace::plan::kcore::Segments;
use proptest::prelude::*;

use crate::fixture::{CORE, MODULE, core_file};
use crate::meter::bounded;
use crate::mutate::{LONGS, changed, changes, every};
use crate::{cases, is_located};

const LOAD: u32 = 1;

fn check(file: &[u8]) {
    if let Ok(needed) = Segments::needed(file) {
        assert!(needed < 4 << 20);
    }
    match bounded(2 * file.len() + 256, || Segments::parse(file)) {
        Ok(segments) => {
            for start in LONGS {
                for end in LONGS {
                    let place = segments.locate(start..end);
                    let holds = segments.iter().any(|segment| {
                        let inside = start >= segment.address && start < end;
                        inside && u128::from(end) <= u128::from(segment.address) + u128::from(segment.size)
                    });
                    assert_eq!(place.is_some(), holds);
                }
            }
        }
        Err(error) => {
            is_located(&error.to_string(), "kcore", file.len());
        }
    }
}

fn sound() -> Vec<u8> {
    core_file(&[
        (4, 0, 0x1000, 0x200),
        (LOAD, CORE, 0x4000, 0x3000),
        (LOAD, MODULE, 0x2000, 0x7000),
        (LOAD, 0xffff_8880_0000_0000, 0x10_0000, 0x9000),
    ])
}

#[test]
fn every_small_change_is_read_or_refused() {
    every(&sound(), check);
}

#[test]
fn of_segments_that_overlap_the_first_counts() {
    let file = core_file(&[
        (LOAD, CORE + 0x1000, 0x1000, 0x5000),
        (LOAD, CORE, 0x4000, 0x1_0000),
        (LOAD, CORE, 0x4000, 0x2_0000),
        (LOAD, CORE + 0x1800, u64::MAX, 0),
        (LOAD, u64::MAX, 2, 0),
        (LOAD, 0, 2, u64::MAX),
        (LOAD, CORE, 0, 0),
    ]);
    check(&file);
    let segments = Segments::parse(&file).unwrap();
    assert_eq!(segments.iter().count(), 3);
    assert_eq!(segments.locate(CORE + 0x1000..CORE + 0x1800), Some(0x5000));
    assert_eq!(segments.locate(CORE + 0x1000..CORE + 0x2001), Some(0x1_1000));
}

#[test]
fn as_many_segments_as_a_file_can_name_are_read() {
    let most: Vec<_> = (0..u64::from(u16::MAX)).map(|number| (LOAD, number << 12, 0x1000, number)).collect();
    let file = core_file(&most);
    check(&file);
    let segments = Segments::parse(&file).unwrap();
    assert_eq!(segments.locate(0xfffe000..0xfffe001), Some(0xfffe));
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn any_change_is_read_or_refused(changes in changes()) {
        check(&changed(&sound(), &changes));
    }

    #[test]
    fn any_segments_are_read(
        segments in prop::collection::vec(
            (0u32..3, prop::sample::select(LONGS.to_vec()), prop::sample::select(LONGS.to_vec()), any::<u64>()),
            0..12,
        )
    ) {
        check(&core_file(&segments));
    }
}
