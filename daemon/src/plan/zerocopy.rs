//! TCP without copies: which functions of this kernel do it, and where their numbers are, from BTF.

use super::btf::Btf;

/// What a function is probed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The call that maps and copies.
    Receive,
    /// Puts pages into the page table.
    Insert,
    /// Takes them out.
    Zap,
    /// Begins a send.
    Send,
    /// Ends a part of one.
    Sent,
}

/// A function, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// What for.
    pub role: Role,
    /// Its symbol; the newest that is known where the kernel has none.
    pub symbol: String,
    /// Why it cannot be probed; empty if it can.
    pub reason: String,
}

/// The functions, and the numbers that the kernel side needs, by the names of its globals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zerocopy {
    /// Each role once.
    pub functions: Vec<Function>,
    /// Positions of arguments and offsets of members.
    pub numbers: Vec<(&'static str, u32)>,
}

/// Names by age, the one that a kernel with several of them calls first.
const NAMES: &[(Role, &[&str])] = &[
    (Role::Receive, &["tcp_zerocopy_receive"]),
    (Role::Insert, &["vm_insert_pages"]),
    // What tcp_zerocopy_receive calls: the first up to 6.2, the second up to 7.0, the third since 7.1.
    (Role::Zap, &["zap_page_range", "zap_vma_range", "zap_page_range_single"]),
    // The first up to 5.11.
    (Role::Send, &["sock_zerocopy_realloc", "msg_zerocopy_realloc"]),
    // The first up to 5.11, the second up to 6.9.
    (Role::Sent, &["sock_zerocopy_callback", "msg_zerocopy_callback", "msg_zerocopy_complete"]),
];

/// Before 5.12 this one is called once for a send, later for each part of it.
const ONCE: &str = "sock_zerocopy_callback";

/// Finds them.
pub fn find(btf: &Btf<'_>) -> Zerocopy {
    let mut found = Zerocopy::default();
    // From 6.0 on a structure of its own, which begins with a struct ubuf_info.
    let of_sends = |member: &str| {
        btf.offset_of("ubuf_info_msgzc", member).or_else(|| btf.offset_of("ubuf_info", member))
    };
    for &(role, names) in NAMES {
        let prototypes = btf.prototypes(names);
        let there = names.iter().zip(&prototypes).find_map(|(name, found)| Some((*name, found.as_ref()?)));
        let symbol = there.map_or(names[names.len() - 1], |(name, _)| name);
        let mut reason = String::new();
        let mut numbers = |numbers: Option<Vec<(&'static str, u32)>>, what: &str| match numbers {
            Some(numbers) => found.numbers.extend(numbers),
            None => reason = format!("BTF does not tell {what}"),
        };
        match (role, there) {
            (_, None) => reason = "this kernel has no such function".into(),
            (Role::Receive, Some((_, prototype))) => {
                let position = |name: &str| prototype.parameters.iter().position(|found| found.name == name);
                let get = || {
                    Some(vec![
                        ("RECEIVE_ZC", position("zc")? as u32),
                        ("RECEIVE_ARGUMENTS", prototype.parameters.len() as u32),
                        ("ZC_LENGTH", btf.offset_of("tcp_zerocopy_receive", "length")?),
                        ("ZC_COPIED", btf.offset_of("tcp_zerocopy_receive", "copybuf_len")?),
                    ])
                };
                numbers(get(), "where its zc has length and copybuf_len");
            }
            (Role::Send, Some((_, prototype))) => {
                let get = || {
                    let arguments = ("SEND_ARGUMENTS", prototype.parameters.len() as u32);
                    Some(vec![arguments, ("UARG_LEN", of_sends("len")?)])
                };
                numbers(get(), "where the struct ubuf_info that it returns has len");
            }
            (Role::Sent, Some((name, prototype))) => {
                let position = |name: &str| prototype.parameters.iter().position(|found| found.name == name);
                let get = || {
                    Some(vec![
                        ("SENT_UARG", position("uarg")? as u32),
                        ("SENT_SUCCESS", position("success")? as u32),
                        ("SENT_LAST", u32::from(name == ONCE)),
                        ("UARG_REFS", btf.offset_of("ubuf_info", "refcnt")?),
                        ("UARG_LEN", of_sends("len")?),
                        ("UARG_ZEROCOPY", of_sends("zerocopy")?),
                    ])
                };
                numbers(get(), "where its uarg has refcnt, len and zerocopy");
            }
            (Role::Insert | Role::Zap, Some(_)) => {}
        }
        found.functions.push(Function { role, symbol: symbol.to_owned(), reason });
    }
    found
}
