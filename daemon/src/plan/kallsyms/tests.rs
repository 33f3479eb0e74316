use proptest::prelude::*;

use super::*;

const FILE: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff81000000 T _stext
ffffffff81000010 t first
ffffffff81000010 T first_alias
ffffffff81000040 t split.part.0
ffffffff81000080 W split
ffffffff810000c0 t twice
ffffffff81000100 t twice
ffffffff81000140 t split.cold
ffffffff81000200 T _etext
ffffffff82000000 D some_data
ffffffffc0202000 t late\t[tun]
ffffffffc0201010 t early\t[tun]
ffffffffc0202800 r data\t[tun]
ffffffffc0204000 t next\t[tap]
ffffffffc0300000 t bpf_prog_6deef7357e7b4530_sd\t[bpf]
ffffffffc0301000 t kprobe_optinsn_page\t[__builtin__kprobes]
ffffffffc0302000 t ftrace_trampoline\t[__builtin__ftrace]
";

fn symbols() -> Symbols<'static> {
    Symbols::parse(FILE.as_bytes()).unwrap()
}

#[test]
fn only_functions_are_kept() {
    let symbols = symbols();
    assert_eq!(symbols.len(), 12);
    assert_eq!(symbols.address_of("some_data"), None);
    assert_eq!(symbols.address_of("kprobe_optinsn_page"), None);
}

#[test]
fn names_with_a_suffix_are_names_of_their_own() {
    let symbols = symbols();
    assert_eq!(symbols.address_of("split"), Some(0xffff_ffff_8100_0080));
    assert_eq!(symbols.address_of("split.part.0"), Some(0xffff_ffff_8100_0040));
    assert_eq!(symbols.address_of("split.cold"), Some(0xffff_ffff_8100_0140));
}

#[test]
fn a_name_that_occurs_twice_has_no_one_address() {
    let symbols = symbols();
    assert_eq!(symbols.address_of("twice"), None);
    let all: Vec<_> = symbols.named("twice").map(|symbol| symbol.address & 0xfff).collect();
    assert_eq!(all, [0x0c0, 0x100]);
}

#[test]
fn an_address_is_in_the_last_function_that_starts_before_it() {
    let symbols = symbols();
    let enclosing = |address| symbols.enclosing(address).map(|(symbol, end)| (symbol.name, end & 0xffff));
    assert_eq!(enclosing(0xffff_ffff_80ff_ffff), None);
    assert_eq!(enclosing(0xffff_ffff_8100_0010), Some(("first", 0x40)));
    assert_eq!(enclosing(0xffff_ffff_8100_003f), Some(("first", 0x40)));
    assert_eq!(enclosing(0xffff_ffff_8100_0040), Some(("split.part.0", 0x80)));
    let (symbol, end) = symbols.enclosing(u64::MAX).unwrap();
    assert_eq!((symbol.name, symbol.module, end), ("next", Some("tap"), u64::MAX));
}

#[test]
fn texts_end_before_the_next_begins() {
    let symbols = symbols();
    assert_eq!(symbols.core_text(), Some(0xffff_ffff_8100_0000..0xffff_ffff_8100_0200));
    assert_eq!(
        symbols.module_text(),
        [
            ("tun".to_owned(), 0xffff_ffff_c020_1010..0xffff_ffff_c020_4000),
            ("tap".to_owned(), 0xffff_ffff_c020_4000..0xffff_ffff_c020_6000),
        ]
    );
}

#[test]
fn hidden_addresses_are_an_error_of_their_own() {
    let hidden = "0000000000000000 T _stext\n0000000000000000 t tun_get_user\t[tun]\n";
    assert_eq!(Symbols::parse(hidden.as_bytes()).err(), Some(SymbolsError::Restricted));
    assert_eq!(Symbols::parse(b"").err(), Some(SymbolsError::Empty));
    assert_eq!(Symbols::parse(b"0000000000000000 D data\n").err(), Some(SymbolsError::Empty));
}

#[test]
fn a_bad_line_is_named_by_its_offset() {
    let error = |line: &str| {
        let file = format!("ffffffff81000000 T _stext\n{line}\n");
        Symbols::parse(file.as_bytes()).err().unwrap().to_string()
    };
    assert_eq!(error("_stext"), "kallsyms, offset 26: no address");
    assert_eq!(error("fff"), "kallsyms, offset 26: nothing behind the address");
    assert_eq!(error("fff T"), "kallsyms, offset 26: not `address type name`");
    assert_eq!(error("fff T "), "kallsyms, offset 26: the name is empty or not UTF-8");
    assert_eq!(error("fff T a\ttun"), "kallsyms, offset 26: the module is not in brackets");
    assert_eq!(error("ffffffff810000000 T a"), "kallsyms, offset 26: the address has more than 64 bits");
    assert_eq!(error(&format!("fff T {}", "a".repeat(1025))), "kallsyms, offset 26: the name is too long");
    let module = format!("fff T a\t[{}]", "m".repeat(256));
    assert_eq!(error(&module), "kallsyms, offset 26: the module's name is too long");
}

#[test]
fn modules_have_no_more_text_than_fits_a_kernel() {
    let mut file = String::new();
    for number in 0..100u64 {
        let start = 0xffff_ffff_c000_0000 + number * 0x10;
        let end = start + MODULE_LIMIT - 2 * PAGE;
        file.push_str(&format!("{start:x} t a\t[m{number}]\n{end:x} t b\t[m{number}]\n"));
    }
    let symbols = Symbols::parse(file.as_bytes()).unwrap();
    let texts = symbols.module_text();
    assert_eq!(texts[0].0, "m0");
    let total: u64 = texts.iter().map(|(_, text)| text.end - text.start).sum();
    assert!(total > MODULES_LIMIT - MODULE_LIMIT && total <= MODULES_LIMIT, "{total:#x}");
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Symbols::parse(&bytes);
    }

    #[test]
    fn any_change_is_read_or_refused(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        end in any::<prop::sample::Index>(),
    ) {
        let mut file = FILE.as_bytes().to_vec();
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        file.truncate(end.index(FILE.len() + 1));
        if let Ok(symbols) = Symbols::parse(&file) {
            symbols.module_text();
            symbols.core_text();
            symbols.enclosing(u64::MAX);
        }
    }

    #[test]
    fn lines_are_split_where_they_end(bytes in prop::collection::vec(prop::sample::select(b"\n\x0b\x8a\x0a\xff ".to_vec()), 0..64)) {
        prop_assert_eq!(line_length(&bytes), bytes.iter().position(|&byte| byte == b'\n'));
    }
}
