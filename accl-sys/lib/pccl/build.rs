include!("../soname.rs");

fn main() {
    soname("libpccl.so", "libpccl.so.2");
}
