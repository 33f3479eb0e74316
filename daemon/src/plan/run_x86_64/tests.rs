use super::super::landing::Table;
use super::*;

const START: u64 = 0xffff_ffff_8100_0000;
/// `mov $8,%ecx`.
const CONSTANT: &[u8] = &[0xb9, 8, 0, 0, 0];
/// `mov %r12d,%edx`.
const NARROW: &[u8] = &[0x44, 0x89, 0xe2];
/// `mov %r13,%rsi`.
const WIDE: &[u8] = &[0x4c, 0x89, 0xee];
/// `mov 0x18(%rsp),%rdx`.
const LOAD: &[u8] = &[0x48, 0x8b, 0x54, 0x24, 0x18];
/// `lea 0x20(%rsp),%rcx`.
const ADDRESS: &[u8] = &[0x48, 0x8d, 0x4c, 0x24, 0x20];
/// `mov %rax,0x8(%rsp)`.
const STORE: &[u8] = &[0x48, 0x89, 0x44, 0x24, 0x08];
/// `push %rbx`, `ret`, `int3`.
const PUSH: &[u8] = &[0x53];
const RETURN: &[u8] = &[0xc3];
const TRAP: &[u8] = &[0xcc];
const CALL: &[u8] = &[0xe8, 0, 1, 0, 0];
/// `jmp *%rax`.
const INDIRECT: &[u8] = &[0xff, 0xe0];

/// `jne` over so many bytes.
fn over(bytes: u8) -> [u8; 2] {
    [0x75, bytes]
}

struct Function {
    bytes: Vec<u8>,
    call: u64,
}

fn function(parts: &[&[u8]]) -> Function {
    let bytes = parts.concat();
    let call = bytes.windows(5).position(|five| five == CALL).unwrap_or_default();
    Function { bytes, call: START + call as u64 }
}

fn body(function: &Function, landings: &Landings) -> Option<Body> {
    Body::read((START, &function.bytes), &[], landings, |_| false, |_| false)
}

/// `nr_segs` in rdx and `fast_segs` in rcx.
fn run(parts: &[&[u8]], reads: bool) -> Run {
    let function = function(parts);
    body(&function, &Landings::default()).unwrap().run(function.call, [2, 3], reads).unwrap()
}

fn value(mode: u8, base: u8, add: i16, narrow: bool) -> Value {
    Value { mode, narrow, base, add }
}

const EIGHT: Value = Value { mode: site::CONSTANT, narrow: false, base: 0, add: 8 };

#[test]
fn arguments_are_followed_back_to_where_five_bytes_begin() {
    let found = run(&[PUSH, CONSTANT, NARROW, CALL, RETURN], true);
    let r12 = value(site::REGISTER, 12, 0, true);
    assert_eq!(found.before, Some((START + 1, [r12, EIGHT])));
    // Both survive the call: a register that the callee saves, and a constant.
    assert_eq!((found.kept, found.returns_alone), ([Some(r12), Some(EIGHT)], true));
}

#[test]
fn what_lies_on_the_stack_is_read_there() {
    let found = run(&[PUSH, ADDRESS, LOAD, CALL, RETURN], true);
    // The load alone has five bytes; rcx has been set before it.
    let slot = value(site::MEMORY, 4, 0x18, false);
    assert_eq!(found.before, Some((START + 6, [slot, value(site::REGISTER, 1, 0, false)])));
    assert_eq!(found.kept, [Some(slot), Some(value(site::REGISTER, 4, 0x20, false))]);
}

#[test]
fn a_probe_that_reads_stands_behind_what_is_written() {
    let parts: [&[u8]; 5] = [CONSTANT, STORE, NARROW, CALL, RETURN];
    assert_eq!(run(&parts, true).before, None);
    assert_eq!(run(&parts, false).before.map(|(at, _)| at), Some(START + 5));
    // Where an argument is loaded before something is written, it is there before; afterwards it may be another.
    let found = run(&[LOAD, STORE, WIDE, CALL, RETURN], false);
    assert_eq!(found.before.map(|(at, _)| at), Some(START + 5));
    assert_eq!(found.kept[0], None);
}

#[test]
fn nothing_may_lead_into_the_run() {
    let skip = over(CONSTANT.len() as u8);
    // To the instruction behind the constant.
    let found = run(&[&skip, CONSTANT, NARROW, CALL, RETURN], true);
    assert_eq!(found.before, None);
    assert_eq!(found.kept, [Some(value(site::REGISTER, 12, 0, true)), None]);
    // To the first of the five bytes: those who come there pass the probe.
    let found = run(&[&over(0), CONSTANT, NARROW, CALL, RETURN], true);
    assert!(found.before.is_some());
    // To the instruction behind the call.
    let all = (CONSTANT.len() + NARROW.len() + CALL.len()) as u8;
    assert!(!run(&[&over(all), CONSTANT, NARROW, CALL, RETURN], true).returns_alone);
}

#[test]
fn the_stack_pointer_stays() {
    assert_eq!(run(&[CONSTANT, PUSH, NARROW, CALL, RETURN], true).before, None);
}

#[test]
fn what_the_kernel_changes_or_enters_itself_is_left_alone() {
    let function = function(&[PUSH, CONSTANT, NARROW, CALL, RETURN]);
    let btf = super::super::fixture::btf();
    let btf = super::super::btf::Btf::parse(&btf).unwrap();
    // Each entry leads from one place to another, relative to its own members.
    let table = |size: usize, code: u64, target: u64| {
        let address = START + 0x10_0000;
        let mut bytes = vec![0u8; size];
        for (place, to) in [(0, code), (4, target)] {
            let relative = to.wrapping_sub(address + place as u64) as u32;
            bytes[place..place + 4].copy_from_slice(&relative.to_le_bytes());
        }
        (address, bytes)
    };
    let landings = |jump: (u64, u64), fixup: (u64, u64)| {
        let (jumps, fixups) = (table(16, jump.0, jump.1), table(12, fixup.0, fixup.1));
        let [jumps, fixups] = [&jumps, &fixups].map(|(address, bytes)| Table { address: *address, bytes });
        Landings::read(&btf, jumps, fixups).unwrap()
    };
    let before = |landings: &Landings| {
        body(&function, landings).unwrap().run(function.call, [2, 3], true).unwrap().before
    };
    let elsewhere = (START + 0x1000, START + 0x1000);
    let narrow = START + 6;
    assert!(before(&landings(elsewhere, elsewhere)).is_some());
    assert_eq!(before(&landings((narrow, START + 0x1000), elsewhere)), None, "a key within");
    assert_eq!(before(&landings((START + 0x1000, narrow), elsewhere)), None, "a key leads there");
    assert_eq!(before(&landings(elsewhere, (START + 0x1000, narrow))), None, "a fixup leads there");
    assert_eq!(
        before(&landings(elsewhere, (START, START + 0x1000))),
        None,
        "the kernel would not optimise it"
    );
}

#[test]
fn a_function_that_is_not_what_it_seems_is_not_read() {
    let read = |parts: &[&[u8]]| body(&function(parts), &Landings::default()).is_some();
    assert!(read(&[NARROW, CALL, RETURN, TRAP, TRAP]));
    assert!(!read(&[NARROW, CALL, TRAP, RETURN]), "a breakpoint");
    assert!(!read(&[&over(6), CALL, RETURN, TRAP]), "a breakpoint that is jumped to");
    assert!(!read(&[NARROW, CALL, INDIRECT]), "a jump to who knows where");
    let jump = function(&[NARROW, CALL, &[0xe9, 0, 0, 0x10, 0]]);
    let read = |detour: bool, thunk: bool| {
        Body::read((START, &jump.bytes), &[], &Landings::default(), |_| detour, |_| thunk).is_some()
    };
    assert_eq!([read(false, false), read(true, false), read(false, true)], [true, false, false]);
}

#[test]
fn other_parts_lead_into_it_too() {
    let function = function(&[PUSH, CONSTANT, NARROW, CALL, RETURN]);
    // `jmp` from the part that is seldom run to the narrow move.
    let cold = START + 0x1000;
    let mut jump = vec![0xe9];
    jump.extend((START + 6).wrapping_sub(cold + 5).to_le_bytes().iter().take(4));
    let body =
        Body::read((START, &function.bytes), &[(cold, &jump)], &Landings::default(), |_| false, |_| false);
    assert_eq!(body.unwrap().run(function.call, [2, 3], true).unwrap().before, None);
}
