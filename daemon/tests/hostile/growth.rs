//! Files of eight times the size take about eight times as long, whatever is in them: those here are made to
//! take more.

use std::fmt::Write as _;
use std::time::Duration;

use iotrace::plan::btf::Btf;
use iotrace::plan::kallsyms::Symbols;
use iotrace::plan::kcore::Segments;
use iotrace::plan::text::{Reader, Text};
use iotrace::plan::{Mechanism, plan};

use crate::fixture::{CORE, Types, btf, core_file};
use crate::meter::cost;

/// Makes the same file small and large, and compares what they take. Sixty-four times would be a square.
fn grows<T>(size: usize, make: impl Fn(usize) -> T, work: impl Fn(&T)) {
    let [small, large] = [size, 8 * size].map(make);
    let time = |of: &T| cost(|| work(of)).1.time;
    let mut seen = Vec::new();
    // Another process may have the memory busy.
    for _ in 0..3 {
        let (one, eight) = (time(&small), time(&large));
        if eight < 24 * one + Duration::from_millis(5) {
            return;
        }
        seen.push((one, eight));
    }
    panic!("{size} and {}: {seen:?}", 8 * size);
}

fn symbols(file: &String) {
    if let Ok(symbols) = Symbols::parse(file.as_bytes()) {
        symbols.module_text();
        symbols.core_text();
        for name in ["f", "_copy_to_iter", "long_head_0_long_tail"] {
            symbols.named(name).count();
            symbols.address_of(name);
        }
        symbols.enclosing(CORE);
    }
}

fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(line).collect()
}

#[test]
fn symbols_take_time_by_their_length() {
    let size = 2000;
    grows(size, |n| lines(n, |i| format!("{:x} t f\n", n - i)), symbols);
    grows(size, |n| lines(n, |i| format!("{:x} t f\n", i * 7919 % n + 1)), symbols);
    grows(size, |n| lines(n, |_| "1 t f\n".into()), symbols);
    grows(size, |n| lines(n, |i| format!("1 t long_head_{i}_long_tail\n")), symbols);
    grows(size, |n| lines(n, |i| format!("{i:x} t f\t[m{i}]\n")), symbols);
    grows(size, |n| lines(n, |i| format!("{i:x} t f\t[__builtin__{i}]\n")), symbols);
    grows(size, |n| lines(n, |i| format!("{:x} t f\t[m{}]\n", i * 0x2000, i % 2)), symbols);
    grows(size, |n| lines(n, |i| format!("1 t f\t[{}{i}]\n", "m".repeat(200))), symbols);
    for piece in ["0", "x", "1 t ", "1 D \t", "1 t f\t[", "\u{e9}"] {
        grows(20 * size, |n| piece.repeat(n), symbols);
        grows(20 * size, |n| format!("{}\n", piece.repeat(n)), symbols);
    }
}

/// As many distinct names as lines, asked for one by one.
#[test]
fn each_of_many_names_is_found_at_once() {
    let make = |n| lines(n, |i| format!("{:x} t function_{i}\n", i + 1));
    grows(1000, make, |file| {
        let symbols = Symbols::parse(file.as_bytes()).unwrap();
        for number in 0..symbols.len() {
            assert!(symbols.address_of(&format!("function_{number}")).is_some());
        }
    });
}

fn types(file: &[u8]) {
    if let Ok(btf) = Btf::parse(file) {
        btf.offset_of("iov_iter", "count");
        btf.enumeration("iter_type");
        btf.prototypes(&["same", "", "iov_iter_zero"]);
    }
}

#[test]
fn types_take_time_by_their_length() {
    // What all of them share: a name, and a prototype with as many parameters as fit.
    const NAME: u32 = 1;
    const LARGEST: u32 = 1;
    let grow = |each: fn(&mut Types, u32) -> u32| {
        let make = |count: usize| {
            let mut types = Types::default();
            assert_eq!(types.name("same"), NAME);
            assert_eq!(types.add("", (13, 0xffff), 0, &[NAME, 0].repeat(0xffff)), LARGEST);
            for number in 0..count as u32 {
                each(&mut types, number);
            }
            types.file()
        };
        grows(1000, make, |file| types(file));
    };
    grow(|types, _| types.add("same", (12, 0), LARGEST, &[]));
    grow(|types, _| types.function("same", 0, &[("x", 1), ("y", 1)]));
    grow(|types, number| types.function("same", 0, &[(&format!("x{number}"), 1)]));
    // A chain of names for the next type, and structs that hold it.
    grow(|types, _| {
        let last = types.add("next", (8, 0), 0, &[]);
        types.add("next", (8, 0), last + 1, &[]);
        types.structure("iov_iter", 4, &[("", last, 0), ("", last + 1, 0), ("x", last, 0)])
    });
    // Structs that each hold the next twice.
    grow(|types, _| {
        let last = types.structure("", 4, &[]);
        types.structure("iov_iter", 4, &[("", last + 2, 0), ("", last + 2, 0)]);
        types.structure("", 4, &[("", last + 4, 0), ("", last + 4, 0)])
    });
}

/// Every function is named at the start of strings that end nowhere.
#[test]
fn strings_without_end_are_not_read_to_their_end() {
    let make = |count: usize| {
        let mut types = Types::default();
        for _ in 0..count {
            types.add("", (12, 0), 1, &[]);
            types.structure("", 4, &[("", 1, 0)]);
        }
        let mut file = types.file();
        let strings = 40 * count as u32;
        file[20..24].copy_from_slice(&strings.to_le_bytes());
        file.truncate(file.len() - 1);
        file.resize(file.len() + strings as usize, b'x');
        file
    };
    grows(500, make, |file| types(file));
}

#[test]
fn names_are_asked_for_together() {
    let make = |count: usize| {
        let mut types = Types::default();
        for number in 0..count {
            types.function(&format!("f{number}"), 0, &[]);
            types.function("same", 0, &[("same", 0)]);
        }
        (types.file(), (0..count).map(|number| format!("f{number}")).collect::<Vec<_>>())
    };
    grows(500, make, |(file, names)| {
        let btf = Btf::parse(file).unwrap();
        let names: Vec<&str> = names.iter().flat_map(|name| [name.as_str(), "same"]).collect();
        assert!(btf.prototypes(&names).iter().all(Option::is_some));
    });
}

#[test]
fn core_files_take_time_by_their_length() {
    let make = |count: usize| {
        let segments: Vec<_> = (0..count as u64).map(|number| (1, number << 12, 1 << 20, 0)).collect();
        core_file(&segments)
    };
    grows(4000, make, |file| {
        Segments::parse(file).unwrap().locate(u64::MAX - 1..u64::MAX);
    });
}

const TARGET: u64 = CORE + 0x1000_0000;

/// A kernel with this text, in functions of so many bytes each.
struct Searched {
    bytes: Vec<u8>,
    kallsyms: String,
}

fn searched(size: usize, unit: &[u8], function: usize) -> Searched {
    let mut bytes = vec![0x90; size];
    for start in (0..(size + 1).saturating_sub(unit.len())).step_by(unit.len()) {
        bytes[start..start + unit.len()].copy_from_slice(unit);
        // Where the unit has four zeros, it leads to the target.
        if let Some(at) = unit.windows(4).position(|four| four == [0; 4]) {
            let next = CORE + (start + at + 4) as u64;
            bytes[start + at..start + at + 4]
                .copy_from_slice(&(TARGET.wrapping_sub(next) as u32).to_le_bytes());
        }
    }
    let mut kallsyms = format!("{CORE:x} T _stext\n{:x} T _etext\n", CORE + size as u64);
    for start in (0..size).step_by(function) {
        let _ = writeln!(
            kallsyms,
            "{:x} t f{start}.cold\n{:x} t f{start}",
            CORE + start as u64,
            CORE + start as u64
        );
    }
    let _ = write!(kallsyms, "{TARGET:x} T import_iovec\n{:x} T next\n", TARGET + 0x80);
    Searched { bytes, kallsyms }
}

/// Calls, calls behind breakpoints, jumps, branches, what only looks so, and what nothing can be made of.
const UNITS: [&[u8]; 10] = [
    &[0xe8, 0, 0, 0, 0],
    &[0xcc, 0, 0, 0, 0],
    &[0xcc, 0, 0, 0, 0, 0x90, 0x90, 0xcc],
    &[0xe9, 0, 0, 0, 0],
    &[0x0f, 0x84, 0, 0, 0, 0],
    &[0x48, 0xb8, 0xe8, 0, 0, 0, 0, 1, 1, 1],
    &[0xcc, 0x48, 0xb8, 0xe8, 0, 0, 0, 0, 1, 1, 1],
    &[0x06, 0xe8, 0, 0, 0, 0],
    &[0x66],
    &[0xcc],
];

#[test]
fn text_takes_time_by_its_length() {
    for unit in UNITS {
        for function in [16, 1 << 19] {
            grows(
                8000,
                |size| searched(size, unit, function),
                |kernel| {
                    let symbols = Symbols::parse(kernel.kallsyms.as_bytes()).unwrap();
                    let text = [Text { address: CORE, bytes: &kernel.bytes, module: None }];
                    let reader = Reader::new(&symbols, &text);
                    for found in reader.references(&[TARGET]) {
                        reader.is_traceable(found.function);
                    }
                },
            );
        }
    }
}

#[test]
fn plans_take_time_by_their_length() {
    let btf = btf();
    let btf = Btf::parse(&btf).unwrap();
    let lib = [0x90; 0x80];
    for unit in UNITS {
        for function in [16, 1 << 19] {
            grows(
                8000,
                |size| searched(size, unit, function),
                |kernel| {
                    let symbols = Symbols::parse(kernel.kallsyms.as_bytes()).unwrap();
                    let text = [
                        Text { address: CORE, bytes: &kernel.bytes, module: None },
                        Text { address: TARGET, bytes: &lib, module: None },
                    ];
                    plan(&symbols, &btf, &text).unwrap();
                },
            );
        }
    }
}

/// As many texts as a kernel has modules, each with a function that is traced and calls a target.
#[test]
fn many_texts_are_told_apart_at_once() {
    let make = |count: usize| {
        let mut kallsyms = format!("{CORE:x} T _stext\n{:x} T _etext\n", CORE + 0x1000);
        let mut texts = vec![(TARGET, vec![0x90; 0x80])];
        for number in 0..count {
            let start = CORE + 0x1000 * (number as u64 + 1);
            let next = start + 10;
            let call = (TARGET.wrapping_sub(next) as u32).to_le_bytes();
            texts.push((start, [&[0x0f, 0x1f, 0x44, 0, 0, 0xe8], &call[..], &[0x90; 6]].concat()));
            let _ = writeln!(kallsyms, "{start:x} t f\t[m{number}]");
        }
        let _ = write!(kallsyms, "{TARGET:x} T import_iovec\n{:x} T next\n", TARGET + 0x80);
        (kallsyms, texts)
    };
    let btf = btf();
    let btf = Btf::parse(&btf).unwrap();
    grows(1000, make, |(kallsyms, texts)| {
        let symbols = Symbols::parse(kallsyms.as_bytes()).unwrap();
        let text: Vec<_> =
            texts.iter().map(|(address, bytes)| Text { address: *address, bytes, module: None }).collect();
        let plan = plan(&symbols, &btf, &text).unwrap();
        let traps =
            plan.targets[0].sites.iter().filter(|site| matches!(site.mechanism, Mechanism::Trap { .. }));
        assert_eq!(traps.count(), texts.len() - 1);
    });
}

#[test]
fn calls_in_a_system_call() {
    // n calls in one function named __do_sys_x, n BTF functions.
    let make = |size: usize| {
        let mut kernel = searched(size, &[0xe8, 0, 0, 0, 0], 1 << 19);
        kernel.kallsyms =
            kernel.kallsyms.replace("f0.cold", "__do_sys_x").replace("T _stext", "T __do_sys_x");
        let mut types = Types::default();
        let long = types.add("unsigned long", (1, 0), 8, &[64]);
        let byte = types.add("u8", (1, 0), 1, &[8]);
        types.structure("iov_iter", 4, &[("iter_type", byte, 0), ("count", long, 64)]);
        let name = types.name("ITER_UBUF");
        types.add("iter_type", (6, 1), 4, &[name, 0]);
        for i in 0..size / 5 {
            types.function(&format!("f{i}"), 0, &[]);
        }
        (kernel, types.file())
    };
    let lib = [0x90; 0x80];
    grows(2000, make, |(kernel, btf)| {
        let btf = Btf::parse(btf).unwrap();
        let symbols = Symbols::parse(kernel.kallsyms.as_bytes()).unwrap();
        let text = [
            Text { address: CORE, bytes: &kernel.bytes, module: None },
            Text { address: TARGET, bytes: &lib, module: None },
        ];
        plan(&symbols, &btf, &text).unwrap();
    });
}

#[test]
fn functions_of_one_name() {
    let make = |size: usize| {
        let mut kernel = searched(
            size,
            &[0x0f, 0x1f, 0x44, 1, 0, 0xe9, 0, 0, 0, 0, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90],
            16,
        );
        for at in (0..size).step_by(16) {
            if at + 16 <= size {
                kernel.bytes[at + 3] = 0;
            }
        }
        let mut kallsyms = format!("{CORE:x} T _stext\n{:x} T _etext\n", CORE + size as u64);
        for start in (0..size).step_by(16) {
            kallsyms.push_str(&format!("{:x} t same\n", CORE + start as u64));
        }
        kallsyms.push_str(&format!("{TARGET:x} T _copy_to_iter\n{:x} T next\n", TARGET + 0x80));
        kernel.kallsyms = kallsyms;
        kernel
    };
    let lib = [0x90; 0x80];
    let btf = btf();
    let btf = Btf::parse(&btf).unwrap();
    grows(64000, make, |kernel| {
        let symbols = Symbols::parse(kernel.kallsyms.as_bytes()).unwrap();
        let text = [
            Text { address: CORE, bytes: &kernel.bytes, module: None },
            Text { address: TARGET, bytes: &lib, module: None },
        ];
        let plan = plan(&symbols, &btf, &text).unwrap();
        let sites: usize = plan.targets.iter().map(|t| t.sites.len()).sum();
        assert!(sites > 1000);
    });
}
