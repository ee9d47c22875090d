//! The long help: everything that a number in the table can mean.

pub(crate) const AFTER: &str = "\
EXAMPLES
  accl-bench all_reduce -b 8 -e 128M -f 2 -g 2     two rank processes, 8 bytes to 128 MiB, doubling
  accl-bench all_gather -t 4 -d all                four ranks as threads of one process, all types
  mpirun -n 4 accl-bench all_reduce                joins the ranks that a launcher has started
  accl-bench all_reduce -g 2 --lib ./libnccl.so.2  measures another library
  all_reduce_perf -g 2                             a link by nccl-tests' name runs that test
  accl-bench all_reduce -g 2 -b 8 -e 1M -f 2 --explain   how the library carries out each size
  accl-bench tune                                  measures this machine for the library's choices

RANKS
  No launcher and no MPI is needed: -g N starts N processes of one rank each, -t N makes N threads in
  each, each a rank of its own. Under mpirun, mpiexec, srun or torchrun, and with ACCL_RANK and ACCL_WORLD set by hand,
  every started process joins, with t x g threads. They meet at ACCL_BENCH_RENDEZVOUS or ACCL_ROOT=host:port if set, else at MASTER_ADDR:MASTER_PORT
  (under torchrun, which uses that port itself, the next one), else, all on one host, at a local socket
  named after the job. A launcher that does not tell enough to join is warned about, and one copy runs alone.
  Ranks meet, wait for each other and compare results by ways of the bench, never of the library under test.

COLUMNS (the table goes to stdout; warnings and the library's own output to stderr)
  size (B)          S, the bytes of the operation, as defined below
  count (elements)  elements per rank: the count argument of the call
  type redop root   element type; reduction, or none; root, or -1
  time (us)         microseconds for one operation: the timed loop divided by -n and -m; over the ranks
                    their average, or as -a says. With -C: CPU time of the process, divided by its threads
  algbw (GB/s)      algorithm bandwidth, S / time; 1 GB = 10^9 bytes
  busbw (GB/s)      bus bandwidth, algbw x factor: what the busiest link carries, whatever the number of
                    ranks, and so comparable with hardware. N/A for one rank, which uses no link
  #wrong            wrong elements, over all ranks, of a separate pass after timing; also bytes written
                    outside the buffers and inputs that were changed. N/A with -c 0
  i_min i_max i_p99 i_cv% i_p50   with -I: of single iterations, each as slow as its slowest rank: least,
                    most, 99th percentile (what at least 1% of the iterations reach), standard deviation
                    in percent of the mean, median. -K leaves the first ones out
  Out of place: two buffers. In place: one, where the operation has that form, else N/A.
  # first call      the first operation after start, which pays for what the library puts off until then
  # Avg bus bandwidth   mean over all rows and placements
  # Largest         the largest size, against what one core copies from memory to memory, measured at the end

SIZE AND FACTOR (n ranks)
  all_reduce                          S = count x type          2(n-1)/n
  reduce_scatter all_gather           S = n x count x type      (n-1)/n
  alltoall gather scatter             S = n x count x type      (n-1)/n
  alltoallv                           S = largest total of a rank   (n-1)/n
  broadcast reduce sendrecv           S = count x type          1
  hypercube (2^k ranks)               S = (n-1) x count x type  1
  Parts are rounded down to multiples of 16 bytes; a size too small for that is shown with zero bandwidth.

VERIFICATION
  Inputs are such that every order of reduction gives the same result, in every type: wrapping integers, or
  small exact numbers. Results are compared bit for bit; an average of floats may be off by 2 units in
  the last place. The first wrong elements are shown on stderr with rank, index, expected and got.

CHOICES (ACCL-P only)
  --explain prints a line under each row: the way that the library chooses, the time that it predicts, the time that was
  measured out of place, and measured / predicted. Names of ways: docs/tuning.md.
  tune has the library measure this machine, in half a second and with 200 MB; do it while nothing else runs. It prints
  the figures with their units and the sizes at which choices change, and writes them to the cache of this boot, which
  communicators read; --output FILE: to a file, for ACCL_TUNE=FILE; --dry-run: nowhere. Of the other options only --lib
  counts.

DIFFERENCES FROM nccl-tests
  Host memory: buffers are plain memory, or --mem-alloc; -G, -D, -V are refused. -y defaults to 1, the NULL
  stream, whose calls are complete on return; -y 0 takes a host stream (acclStreamCreate) where there is one.
  -g starts processes. -p changes nothing. -J has more keys. -a works without MPI.

ENVIRONMENT
  NCCL_TESTS_SPLIT, NCCL_TESTS_SPLIT_MASK   groups of ranks: AND, OR, MOD, DIV or & | % / and a number (decimal,
                    0x, 0b) applied to the rank give the group; MASK=v is \"&v\". Bandwidths are per group
  NCCL_TESTS_MIN_BW           the average bus bandwidth wanted; less than 0.9 of it is exit code 7
  NCCL_TESTS_ALLTOALLV_SPREAD parts between pairs are shorter by up to this share, 0 to 1
  ACCL_BENCH_RENDEZVOUS       host:port where ranks of a launcher meet
  ACCL_RANK, ACCL_WORLD, ACCL_ROOT   this process's number, how many there are, host:port of the first: a start by hand
  The library reads its own: NCCL_DEBUG, NCCL_ALGO, ... are passed on as they are.

EXIT CODES
  0    all measured, all right
  2    the command line or environment asks for what cannot be done; also a size larger than memory
  3    the library cannot be opened, or lacks a function that is needed
  4    a call of the library failed
  5    a rank's process ended before its work did
  6    a time limit (-T, or that of meeting) passed
  7    wrong results, or less bandwidth than NCCL_TESTS_MIN_BW
  130  interrupted
  In all cases the rows that are complete are printed and in the files. JSON files are replaced as a whole,
  at most once a second: they parse at any time.
";
