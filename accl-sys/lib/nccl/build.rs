include!("../soname.rs");

fn main() {
    soname("libnccl.so", "libnccl.so.2");
}
