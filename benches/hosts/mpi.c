/* The loop of mpi.rs by MPI: OPERATION BYTES SAMPLES CALLS. Prints the median time of a call in microseconds; the
 * slowest rank counts. Each rank has a core of its own, if there are enough. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_size(const void *one, const void *other) {
  double a = *(const double *)one, b = *(const double *)other;
  return (a > b) - (a < b);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 5 || ranks != 2) return 2;
  if (sysconf(_SC_NPROCESSORS_ONLN) >= ranks) {
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(rank, &own);
    sched_setaffinity(0, sizeof own, &own);
  }
  size_t count = strtoull(argv[2], NULL, 10) / sizeof(float);
  int samples = atoi(argv[3]), calls = atoi(argv[4]), warm = samples / 10 + 1;
  float *send = malloc(count * sizeof *send + 64), *recv = malloc(count * sizeof *recv + 64);
  for (size_t i = 0; i < count; i++) send[i] = 1, recv[i] = 0;
  double *times = malloc(samples * sizeof *times);
  for (int sample = -warm; sample < samples; sample++) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    for (int call = 0; call < calls; call++) {
      if (!strcmp(argv[1], "allreduce"))
        MPI_Allreduce(send, recv, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      else if (!strcmp(argv[1], "allgather"))
        MPI_Allgather(send, count / 2, MPI_FLOAT, recv, count / 2, MPI_FLOAT, MPI_COMM_WORLD);
      else
        MPI_Reduce_scatter_block(send, recv, count / 2, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    double mine = (MPI_Wtime() - begin) * 1e6 / calls, slowest;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (sample >= 0) times[sample] = slowest;
  }
  qsort(times, samples, sizeof *times, by_size);
  if (rank == 0) printf("%.3f\n", times[samples / 2]);
  MPI_Finalize();
  return 0;
}
