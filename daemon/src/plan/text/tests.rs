use proptest::prelude::*;

use super::super::arch_x86_64::{candidates, has_ftrace_entry};
use super::*;

const BASE: u64 = 0xffff_ffff_8100_0000;
const TARGET: u64 = 0xffff_ffff_8170_0000;

/// `opcode rel32` at an address.
fn lead(opcode: u8, at: u64, to: u64) -> [u8; 5] {
    let [a, b, c, d] = (to.wrapping_sub(at + 5) as u32).to_le_bytes();
    [opcode, a, b, c, d]
}

/// References in one function `f` with these bytes, as offset and offset behind.
fn found(bytes: &[u8]) -> Vec<(u64, Option<u64>)> {
    let end = BASE + bytes.len() as u64;
    let file = format!("{BASE:x} T _stext\n{BASE:x} t f\n{end:x} T _etext\n{TARGET:x} T g\n");
    let symbols = Symbols::parse(file.as_bytes()).unwrap();
    let text = [Text { address: BASE, bytes, module: None }];
    let references = Reader::new(&symbols, &text).references(&[TARGET]);
    references.iter().map(|found| (found.address - BASE, found.after.map(|after| after - BASE))).collect()
}

#[test]
fn calls_and_tail_jumps_are_told_apart() {
    let call = lead(0xe8, BASE, TARGET);
    let [_, branch @ ..] = lead(0x84, BASE + 6, TARGET);
    let jump = lead(0xe9, BASE + 11, TARGET);
    let bytes = [&call[..], &[0x0f, 0x84], &branch, &jump].concat();
    assert_eq!(found(&bytes), [(0, Some(5)), (5, None), (11, None)]);
}

#[test]
fn a_breakpoint_hides_neither() {
    let [_, call @ ..] = lead(0xe8, BASE, TARGET);
    let [_, branch @ ..] = lead(0x84, BASE + 6, TARGET);
    let [_, jump @ ..] = lead(0xe9, BASE + 11, TARGET);
    let bytes = [&[0xcc][..], &call, &[0xcc, 0x84], &branch, &[0xcc], &jump, &[0xcc; 7]].concat();
    assert_eq!(found(&bytes), [(0, Some(5)), (5, None), (11, None)]);
}

#[test]
fn what_is_within_an_instruction_is_no_call() {
    let [a, b, c, d, e] = lead(0xe8, BASE + 2, TARGET);
    assert_eq!(found(&[0x48, 0xb8, a, b, c, d, e, 0, 0, 0, 0xc3]), []);
}

#[test]
fn what_a_jump_has_left_of_an_instruction_is_no_prefix_of_a_call() {
    // The last bytes of a move, which alone would be a REX prefix.
    let jump = lead(0xe9, BASE, 0xffff_ffff_c040_0000);
    for left in [&[0x48][..], &[0x4c, 0x48], &[0x2e, 0x66]] {
        let call = lead(0xe8, BASE + 5 + left.len() as u64, TARGET);
        let at = 5 + left.len() as u64;
        assert_eq!(found(&[&jump[..], left, &call, &[0xc3]].concat()), [(at, Some(at + 5))], "{left:x?}");
    }
}

#[test]
fn decoding_goes_on_behind_an_optimised_probe() {
    // Over `mov %rax,%rbx` and `movabs $…,%rax`, whose last bytes are `b8 00 00 00 00 00 00 00` now.
    let jump = lead(0xe9, BASE, BASE + 0x100_0000);
    let call = lead(0xe8, BASE + 13, TARGET);
    let bytes = [&jump[..], &[0xb8, 0, 0, 0, 0, 0, 0, 0], &call, &[0xc3]].concat();
    assert_eq!(found(&bytes), [(13, Some(18))]);
}

#[test]
fn a_detour_among_a_modules_text_is_no_part_of_it() {
    // As in 6.12's generic_perform_write: of `mov 0x44(%r13),%eax` the last two bytes are left. /proc/kallsyms goes on to
    // list the `.init.text` of a module, whose memory is free.
    const MODULE: u64 = 0xffff_ffff_c040_0000;
    let detour = MODULE + 0x1080;
    let call = lead(0xe8, BASE + 7, TARGET);
    let bytes = [&lead(0xe9, BASE, detour)[..], &[0x45, 0x44], &call, &[0xc3; 20]].concat();
    let end = BASE + bytes.len() as u64;
    let core = format!("{BASE:x} T _stext\n{BASE:x} t f\n{TARGET:x} T g\n{:x} T _etext\n", TARGET + 64);
    assert!(end < TARGET);
    let file = format!("{core}{MODULE:x} t m\t[tun]\n{:x} T tun_init\t[tun]\n", MODULE + 0x15010);
    let symbols = Symbols::parse(file.as_bytes()).unwrap();
    let text = [Text { address: BASE, bytes: &bytes, module: None }];
    let reader = Reader::new(&symbols, &text);
    let found = reader.references(&[TARGET]);
    assert_eq!(found.iter().map(|found| found.address - BASE).collect::<Vec<_>>(), [7]);
    assert!(reader.is_detour(BASE, detour));
    assert!(!reader.is_detour(MODULE, detour));
    // Where the kernel tells that the page is its own, modules do not lead there either.
    let file = format!("{file}{:x} t kprobe_optinsn_page\t[__builtin__kprobes]\n", MODULE + 0x1000);
    let symbols = Symbols::parse(file.as_bytes()).unwrap();
    assert!(Reader::new(&symbols, &text).is_detour(MODULE, detour));
}

#[test]
fn what_a_function_ends_with_does_not_return() {
    assert_eq!(found(&lead(0xe8, BASE, TARGET)), [(0, None)]);
}

#[test]
fn the_first_function_of_a_text_is_not_looked_for_in_the_text_before() {
    let file = format!("{BASE:x} T f\n{:x} T g\n", BASE + 16);
    let symbols = Symbols::parse(file.as_bytes()).unwrap();
    let [before, text] = [[0xcc; 16], [0x0f, 0x1f, 0x44, 0, 0, 0xc3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]];
    let text = [
        Text { address: BASE, bytes: &before, module: None },
        Text { address: BASE + 16, bytes: &text, module: None },
    ];
    let reader = Reader::new(&symbols, &text);
    assert!(!reader.has_ftrace_entry(BASE));
    assert!(reader.has_ftrace_entry(BASE + 16));
}

#[test]
fn a_module_among_the_pieces_of_another_hides_none_of_them() {
    let file =
        format!("{BASE:x} t a\t[one]\n{:x} t b\t[one]\n{:x} t c\t[two]\n", BASE + 0x10000, BASE + 0x8000);
    let symbols = Symbols::parse(file.as_bytes()).unwrap();
    let reader = Reader::new(&symbols, &[]);
    for offset in [0, 0x8000, 0xf000, 0x10000] {
        assert!(!reader.is_detour(BASE, BASE + offset), "{offset:#x}");
    }
    assert!(reader.is_detour(BASE, BASE - 1));
    assert!(reader.is_detour(BASE, BASE + 0x12000));
}

#[test]
fn entries_of_ftrace_are_known_in_all_their_forms() {
    let entry = |bytes: &[u8]| has_ftrace_entry(bytes, BASE, |to| to == TARGET);
    let nop = [0x0f, 0x1f, 0x44, 0, 0];
    assert!(entry(&nop));
    assert!(entry(&[0x66, 0x66, 0x66, 0x66, 0x90]));
    assert!(entry(&[0xcc, 0x1f, 0x44, 0, 0]));
    assert!(entry(&lead(0xe8, BASE, TARGET)));
    assert!(!entry(&lead(0xe8, BASE, TARGET + 16)));
    assert!(!entry(&nop[..4]));
    assert!(!entry(&[0x55, 0x0f, 0x1f, 0x44, 0, 0]));
    for mark in
        [[0xf3, 0x0f, 0x1e, 0xfa], [0x66, 0x0f, 0x1f, 0], [0x0f, 0x1f, 0x40, 0], [0x0f, 0x1f, 0x40, 0xd6]]
    {
        assert!(entry(&[&mark[..], &nop].concat()));
        assert!(entry(&[&[0xcc], &mark[1..], &nop].concat()));
        assert!(entry(&[&mark[..], &lead(0xe8, BASE + 4, TARGET)].concat()));
        assert!(!entry(&[&mark[..], &[0x55, 0x53, 0x41, 0x54, 0x55]].concat()));
    }
}

proptest! {
    /// The quick search against the obvious one, over the edges of its blocks.
    #[test]
    fn no_candidate_is_missed(
        size in 0usize..1200,
        places in prop::collection::vec((0usize..1200, 0u64..3), 0..12),
        fill in any::<u8>(),
    ) {
        let targets = [TARGET, TARGET + 0x40, TARGET + 0x3000];
        let mut bytes = vec![fill; size];
        for (place, target) in places {
            if place + 4 <= size {
                let to = targets[target as usize];
                bytes[place..place + 4].copy_from_slice(&lead(0, BASE + place as u64 - 1, to)[1..]);
            }
        }
        let obvious: Vec<usize> = (0..size.saturating_sub(3))
            .filter(|&at| {
                let relative = i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
                targets.contains(&(BASE + at as u64 + 4).wrapping_add_signed(i64::from(relative)))
            })
            .collect();
        prop_assert_eq!(candidates(&bytes, BASE, &targets), obvious);
    }

    #[test]
    fn any_function_is_decoded_to_its_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let [_, call @ ..] = lead(0xe8, BASE + bytes.len() as u64, TARGET);
        found(&[&bytes[..], &[0xcc], &call].concat());
    }
}

/// The worst for the search of patched text: nothing but breakpoints, each of which may hide a call.
#[test]
fn breakpoints_without_end_take_no_time_to_speak_of() {
    let mut bytes = vec![0xcc; FUNCTION_LIMIT];
    let call = lead(0xe8, BASE + 500_000, TARGET);
    bytes[500_000..500_005].copy_from_slice(&call);
    bytes[500_005..500_010].copy_from_slice(&[0x48, 0xb8, call[0], call[1], call[2]]);
    assert_eq!(found(&bytes), [(500_000, Some(500_005))]);
}
