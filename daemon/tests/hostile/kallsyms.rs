//! The list of symbols.

use iotrace::plan::kallsyms::Symbols;
use proptest::prelude::*;

use crate::fixture;
use crate::meter::bounded;
use crate::mutate::{LONGS, changed, changes, every};
use crate::{cases, is_located};

pub fn check(file: &[u8]) {
    match bounded(16 * file.len() + 1024, || Symbols::parse(file)) {
        Ok(symbols) => ask(&symbols, file),
        Err(error) => {
            let error = error.to_string();
            if !error.starts_with("kallsyms shows no addresses") && error != "kallsyms has no functions" {
                let offset = is_located(&error, "kallsyms", file.len());
                assert!(offset == 0 || file[offset - 1] == b'\n', "{error}");
            }
        }
    }
}

/// All that is asked of the symbols of a kernel.
fn ask(symbols: &Symbols<'_>, file: &[u8]) {
    let addresses = LONGS.into_iter().chain([fixture::CORE + 0x10, fixture::MODULE, fixture::TRAMPOLINE]);
    for address in addresses {
        if let Some((symbol, end)) = symbols.enclosing(address) {
            assert!(symbol.address <= address && (address < end || end == u64::MAX));
            assert!(symbol.address != 0 && !symbol.name.is_empty());
            let all: Vec<_> = symbols.named(symbol.name).collect();
            assert!(all.contains(&symbol));
            assert!(all.is_sorted_by_key(|symbol| symbol.address));
            let only = all.iter().filter(|symbol| symbol.module.is_none()).count() == 1;
            assert_eq!(symbols.address_of(symbol.name).is_some(), only);
        }
    }
    assert!(symbols.core_text().is_none_or(|text| text.start < text.end));
    let modules = bounded(16 * file.len() + 1024, || symbols.module_text());
    assert!(modules.is_sorted_by_key(|(_, text)| text.start));
    assert!(modules.iter().map(|(_, text)| text.end - text.start).sum::<u64>() <= 512 << 20);
}

fn sound() -> String {
    fixture::kallsyms(&fixture::images())
}

#[test]
fn every_small_change_is_read_or_refused() {
    // One line of each sort.
    let file = sound();
    let lines: Vec<&str> = file.lines().collect();
    let few = [0, 1, 2, lines.len() - 4, lines.len() - 3, lines.len() - 2, lines.len() - 1];
    let few: String = few.iter().map(|&line| format!("{}\n", lines[line])).collect();
    every(few.as_bytes(), check);
    for length in 0..file.len() {
        check(&file.as_bytes()[..length]);
    }
}

#[test]
fn odd_lines_are_read_or_refused() {
    let long = "x".repeat(1 << 20);
    let zeros = "0".repeat(1 << 20);
    for line in [
        "",
        "\n\n",
        " ",
        "\r",
        "\0",
        "ffffffff81000000",
        "ffffffff81000000 ",
        "ffffffff81000000 T",
        "ffffffff81000000 T\t",
        "ffffffff81000000 T a b",
        "ffffffff81000000 T a\t",
        "ffffffff81000000 T a\t[",
        "ffffffff81000000 T a\t[]",
        "ffffffff81000000 T a\t[]]",
        "ffffffff81000000 T a\t[[]",
        "ffffffff81000000 T \t[m]",
        "ffffffff81000000 T a\t[m]\t[n]",
        "ffffffff81000000 T a\t[\u{1b}[31m]",
        "ffffffff81000000 T a\r",
        "0x10 T a",
        "-1 T a",
        "0 T a",
        "ffffffffffffffff T a",
        "ffffffffffffffff T a\t[m]",
        "10000000000000000 T a",
        "00000000000000000 T a",
        &long,
        &zeros,
        &format!("{long} T a"),
        &format!("1 T {long}"),
        &format!("1 T a\t[{long}]"),
        &format!("1 T a\t{long}"),
    ] {
        check(line.as_bytes());
        check(format!("{line}\n").as_bytes());
        check(format!("{}{line}\n", sound()).as_bytes());
    }
    for bytes in
        [&b"1 T \xff\n"[..], b"1 T a\xc3\n", b"1 T a\t[\xff]\n", b"1 D \xff\n", b"1 \xff a\n", b"\xff\n"]
    {
        check(bytes);
    }
}

/// Addresses, types, names and modules of lines, as `/proc/kallsyms` could have them if not in this order.
pub fn lines() -> impl Strategy<Value = String> {
    let address = prop_oneof![
        prop::sample::select(LONGS.to_vec()),
        (0u64..0x1000).prop_map(|offset| fixture::CORE + offset),
        (0u64..0x3000).prop_map(|offset| fixture::MODULE + offset),
    ];
    let kind = prop::sample::select(vec!["t", "T", "w", "W", "D", "A", "?"]);
    let name = prop::sample::select(vec![
        "_stext",
        "_etext",
        "import_iovec",
        "_copy_to_iter",
        "vfs_readv",
        "vfs_readv.cold",
        ".",
        "a.b",
        "é",
        "__fentry__",
        "ftrace_caller",
    ]);
    let module = prop::sample::select(vec![
        "",
        "\t[tun]",
        "\t[tap]",
        "\t[a b]",
        "\t[bpf]",
        "\t[__builtin__x]",
        "\t[é]",
    ]);
    let line = (address, kind, name, module)
        .prop_map(|(address, kind, name, module)| format!("{address:016x} {kind} {name}{module}\n"));
    prop::collection::vec(line, 0..40).prop_map(|lines| lines.concat())
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn any_change_is_read_or_refused(changes in changes()) {
        check(&changed(sound().as_bytes(), &changes));
    }

    #[test]
    fn any_order_is_read(lines in lines()) {
        check(lines.as_bytes());
    }
}
