use proptest::prelude::*;

use super::super::fixture::core_file as file;
use super::*;

const TEXT: (u32, u64, u64, u64) = (LOAD, 0xffff_ffff_8100_0000, 0x20_0000, 0x7fff_8100_3000);

#[test]
fn a_range_is_in_the_file_if_a_segment_holds_all_of_it() {
    let file = file(&[(4, 0, 0x1000, 0x200), (LOAD, 0xffff_8880_0000_0000, 0x1000, 0x4000), TEXT]);
    assert_eq!(Segments::needed(&file[..HEADER]), Ok(HEADER + 3 * PROGRAM_HEADER));
    let segments = Segments::parse(&file).unwrap();
    assert_eq!(segments.iter().count(), 2);
    let (_, start, size, offset) = TEXT;
    assert_eq!(segments.locate(start..start + size), Some(offset));
    assert_eq!(segments.locate(start + 0x10..start + 0x20), Some(offset + 0x10));
    assert_eq!(segments.locate(start..start + size + 1), None);
    assert_eq!(segments.locate(start - 1..start + 1), None);
    assert_eq!(segments.locate(start..start), None);
    assert_eq!(segments.locate(0..0x10), None);
}

#[test]
fn a_segment_may_end_with_the_address_space() {
    let segments = Segments::parse(&file(&[(LOAD, u64::MAX - 0xfff, 0x1000, 0x4000)])).unwrap();
    assert_eq!(segments.locate(u64::MAX - 0xf..u64::MAX), Some(0x4ff0));
}

#[test]
fn a_bad_file_is_refused_with_its_offset() {
    let good = file(&[TEXT]);
    let error = |file: &[u8]| Segments::parse(file).unwrap_err().to_string();
    assert_eq!(error(b"\x7fELF"), "kcore, offset 4: the ELF header is cut off");
    assert_eq!(error(&[0; 64]), "kcore, offset 0: not ELF");
    assert_eq!(error(&good[..good.len() - 1]), "kcore, offset 119: the program headers are cut off");
    let changed = |offset: usize, byte| {
        let mut file = good.clone();
        file[offset] = byte;
        file
    };
    assert_eq!(error(&changed(4, 1)), "kcore, offset 4: not ELF of 64 bits, little endian");
    assert_eq!(error(&changed(54, 32)), "kcore, offset 54: program headers of an unknown size");
    let far = changed(39, 0xff);
    assert_eq!(error(&far), "kcore, offset 32: the program headers are far from the ELF header");
    assert!(Segments::needed(&far).is_err());
}

proptest! {
    #[test]
    fn any_change_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        end in any::<prop::sample::Index>(),
        range in any::<(u64, u64)>(),
    ) {
        let mut file = file(&[TEXT, TEXT, (LOAD, u64::MAX, 1, u64::MAX)]);
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        file.truncate(end.index(file.len() + 1));
        let _ = Segments::needed(&file);
        if let Ok(segments) = Segments::parse(&file) {
            segments.locate(range.0..range.1);
        }
    }
}
