include!("../soname.rs");

fn main() {
    soname("libaccl.so", "libaccl.so");
}
