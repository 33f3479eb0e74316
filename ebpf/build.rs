//! Tells which architecture's registers the probes see.
fn main() {
    if let Err(error) = aya_build::emit_bpf_target_arch_cfg() {
        println!("cargo::error={error:#}");
    }
}
