//! The kernel's text: what is found in it, against a decoder that knows nothing of the planner.

use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, OpKind};
use iotrace::plan::kallsyms::Symbols;
use iotrace::plan::text::{Reader, Reference, Text};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::cases;
use crate::fixture::{CORE, TRAMPOLINE};
use crate::meter::bounded;

/// Length of the longest instruction.
const LONGEST: usize = 15;
const TARGETS: [u64; 3] = [CORE + 0x10_0000, CORE + 0x10_0040, CORE - 0x2000_0000];

/// Whether an instruction of a function may start at `place`. Bytes that a kprobe may have written leave a choice: a breakpoint is
/// one byte of any instruction, and a jump out of all text covers a part of those it was written over.
fn is_boundary(bytes: &[u8], address: u64, place: usize, known: &[Range<u64>]) -> bool {
    let mut starts = vec![false; place + LONGEST + 6];
    starts[0] = true;
    for offset in 0..place {
        if !starts[offset] {
            continue;
        }
        let decoded = decoded(bytes, address, offset);
        let lengths = match decoded.code() {
            _ if bytes[offset] == 0xcc => 1..=LONGEST,
            Code::INVALID => 1..=LONGEST,
            Code::Jmp_rel32_64 if !known.iter().any(|text| text.contains(&decoded.near_branch_target())) => {
                5..=5 + LONGEST
            }
            _ => decoded.len()..=decoded.len(),
        };
        starts[offset + lengths.start()..=offset + lengths.end()].fill(true);
    }
    starts[place]
}

fn decoded(bytes: &[u8], address: u64, offset: usize) -> iced_x86::Instruction {
    let address = address.wrapping_add(offset as u64);
    Decoder::with_ip(64, &bytes[offset..], address, DecoderOptions::NONE).decode()
}

/// Where a breakpoint at the start of these bytes could lead if it hides a call or jump, and how long that is.
fn hidden(bytes: &[u8], address: u64) -> Vec<(u64, usize)> {
    let to = |length: usize| {
        let relative = i32::from_le_bytes(bytes.get(length - 4..length)?.try_into().unwrap());
        Some((address.wrapping_add(length as u64).wrapping_add_signed(i64::from(relative)), length))
    };
    to(5).into_iter().chain(to(6)).collect()
}

/// The instructions of a kernel as somebody else decodes them.
pub struct Oracle<'a> {
    symbols: &'a Symbols<'a>,
    text: &'a [Text<'a>],
    known: Vec<Range<u64>>,
}

impl<'a> Oracle<'a> {
    pub fn new(symbols: &'a Symbols<'a>, text: &'a [Text<'a>]) -> Oracle<'a> {
        let modules = symbols.module_text().into_iter().map(|(_, range)| range);
        Oracle { symbols, text, known: symbols.core_text().into_iter().chain(modules).collect() }
    }

    /// Checks that at `address` starts an instruction that leads to `target` and, if it comes back, comes back to
    /// `after`, in the same function.
    pub fn confirm(&self, address: u64, target: u64, after: Option<u64>) {
        let (function, end) = self.symbols.enclosing(address).unwrap();
        let holds = |text: &&Text<'_>| {
            let offset = function.address.checked_sub(text.address);
            offset.is_some_and(|offset| offset < text.bytes.len() as u64) && address >= text.address
        };
        let text = self.text.iter().find(holds).unwrap();
        let rest = &text.bytes[(function.address - text.address) as usize..];
        let bytes = &rest[..rest.len().min((end - function.address) as usize)];
        let offset = (address - function.address) as usize;
        assert!(
            is_boundary(bytes, function.address, offset, &self.known),
            "{}+{offset:#x} is within an instruction",
            function.name
        );
        let ways = if bytes[offset] == 0xcc {
            hidden(&bytes[offset..], address)
        } else {
            let decoded = decoded(bytes, function.address, offset);
            assert_eq!(decoded.op0_kind(), OpKind::NearBranch64);
            assert!(after.is_none() || decoded.code() == Code::Call_rel32_64);
            vec![(decoded.near_branch_target(), decoded.len())]
        };
        let way = ways.iter().find(|&&(to, length)| {
            to == target && after.is_none_or(|after| after == address + length as u64)
        });
        assert!(way.is_some(), "{}+{offset:#x} does not lead to {target:#x}: {ways:x?}", function.name);
        assert!(after.is_none_or(|after| after < end && after > address));
    }
}

/// Searches a text in which functions start at `starts` and confirms what is found.
fn check(bytes: &[u8], at: u64, starts: &[u64]) {
    let mut file = format!("{CORE:x} T _stext\n{:x} T _etext\n", CORE + 0x20_0000);
    for (number, start) in starts.iter().enumerate() {
        file.push_str(&format!("{start:x} t f{number}\n"));
    }
    for target in TARGETS {
        file.push_str(&format!("{target:x} T g{target:x}\n"));
    }
    let symbols = Symbols::parse(file.as_bytes()).unwrap();
    let text = [Text { address: at, bytes, module: None }];
    for found in search(&symbols, &text) {
        Oracle::new(&symbols, &text).confirm(found.address, found.target, found.after);
    }
}

fn search<'a>(symbols: &'a Symbols<'a>, text: &'a [Text<'a>]) -> Vec<Reference<'a>> {
    let size: usize = text.iter().map(|text| text.bytes.len()).sum();
    let reader = Reader::new(symbols, text);
    // Makes the decoder's tables, once for all.
    decoded(&[0x90], 0, 0);
    let found = bounded(64 * size + 1024, || reader.references(&TARGETS));
    assert!(found.is_sorted_by(|one, next| one.address < next.address));
    for text in text {
        for address in [text.address, text.address.wrapping_add(text.bytes.len() as u64), 0, u64::MAX] {
            reader.has_ftrace_entry(address);
            symbols.enclosing(address).map(|(symbol, _)| reader.is_traceable(symbol));
        }
        let end = text.address.saturating_add(text.bytes.len() as u64);
        assert!(reader.covers(&(text.address..end)) || text.bytes.is_empty() || end == u64::MAX);
    }
    found
}

/// A piece of code.
#[derive(Clone, Debug)]
enum Piece {
    /// These bytes.
    Bytes(Vec<u8>),
    /// These bytes, then four that lead to a target.
    Lead(Vec<u8>, usize),
    /// These bytes, then four that lead out of all text.
    Out(Vec<u8>),
}

fn piece() -> impl Strategy<Value = Piece> {
    let plain: [&[u8]; 12] = [
        &[0x90],
        &[0x53],
        &[0xc3],
        &[0xcc],
        &[0xcc, 0xcc, 0xcc, 0xcc, 0xcc],
        &[0x48, 0x89, 0xc3],
        &[0x0f, 0x1f, 0x44, 0, 0],
        &[0xf3, 0x0f, 0x1e, 0xfa],
        &[0x48, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0x66, 0x66],
        &[0x0f, 0x0b],
        &[0x06],
    ];
    let opcode: [&[u8]; 9] = [
        &[0xe8],
        &[0xe9],
        &[0xcc],
        &[0x0f, 0x84],
        &[0xcc, 0x84],
        &[0x66, 0xe8],
        &[0x48, 0xb8],
        &[0xb8],
        &[0xe8, 0xe8],
    ];
    let opcode = || prop::sample::select(opcode.map(<[u8]>::to_vec).to_vec());
    prop_oneof![
        4 => prop::sample::select(plain.map(<[u8]>::to_vec).to_vec()).prop_map(Piece::Bytes),
        1 => prop::collection::vec(any::<u8>(), 1..6).prop_map(Piece::Bytes),
        3 => (opcode(), 0..TARGETS.len()).prop_map(|(opcode, target)| Piece::Lead(opcode, target)),
        1 => opcode().prop_map(Piece::Out),
    ]
}

fn assembled(pieces: &[Piece], address: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        let (opcode, to) = match piece {
            Piece::Bytes(plain) => {
                bytes.extend(plain);
                continue;
            }
            Piece::Lead(opcode, target) => (opcode, TARGETS[*target]),
            Piece::Out(opcode) => (opcode, TRAMPOLINE),
        };
        bytes.extend(opcode);
        let next = address.wrapping_add(bytes.len() as u64 + 4);
        bytes.extend((to.wrapping_sub(next) as u32).to_le_bytes());
    }
    bytes
}

#[test]
fn text_at_the_ends_of_the_address_space_is_searched() {
    let [call, jump] = [0xe8, 0xe9].map(|opcode| Piece::Lead(vec![opcode], 0));
    for at in [0, 1, 4, u64::MAX - 40, u64::MAX - 9, u64::MAX - 4, u64::MAX] {
        let bytes = assembled(&[call.clone(), jump.clone(), call.clone(), call.clone(), jump.clone()], at);
        for start in [at, at.saturating_add(5), at.saturating_sub(1), 1] {
            check(&bytes, at, &[start.max(1)]);
        }
    }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn what_is_found_is_an_instruction_that_leads_there(
        pieces in prop::collection::vec(piece(), 1..40),
        starts in prop::collection::vec(any::<Index>(), 0..6),
        first in 0usize..12,
        last in 0usize..12,
    ) {
        let bytes = assembled(&pieces, CORE);
        let mut starts: Vec<_> = starts.iter().map(|at| CORE + at.index(bytes.len()) as u64).collect();
        starts.push(CORE);
        let end = bytes.len() - last.min(bytes.len());
        let first = first.min(end);
        check(&bytes[first..end], CORE + first as u64, &starts);
        check(&bytes, CORE, &starts);
    }
}
