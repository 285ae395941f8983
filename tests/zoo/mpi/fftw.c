// Each rank fills its part from indices; the root compares with a transform in one process (see the program's file).
#include <fftw3-mpi.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double at(ptrdiff_t i) { return (double)(i * 7919 % 1009) / 1009; }

static void transform(int dims, const ptrdiff_t *n, unsigned how) {
    ptrdiff_t rows, start, trows, tstart, all = 1, rest;
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 0; i < dims; i++) all *= n[i];
    ptrdiff_t room = fftw_mpi_local_size_transposed(dims, n, MPI_COMM_WORLD, &rows, &start, &trows, &tstart);
    fftw_complex *data = fftw_alloc_complex(room);
    fftw_plan forth = fftw_mpi_plan_dft(dims, n, data, data, MPI_COMM_WORLD, FFTW_FORWARD, FFTW_ESTIMATE | (how & FFTW_MPI_TRANSPOSED_OUT));
    fftw_plan back = fftw_mpi_plan_dft(dims, n, data, data, MPI_COMM_WORLD, FFTW_BACKWARD, FFTW_ESTIMATE | (how ? FFTW_MPI_TRANSPOSED_IN : 0));
    rest = all / n[0];
    for (ptrdiff_t i = 0; i < rows * rest; i++) data[i][0] = at(start * rest + i), data[i][1] = at(start * rest + i + 5);
    fftw_execute(forth);
    double wrong = 0, worst;
    if (!how) {
        int size[3];
        for (int i = 0; i < dims; i++) size[i] = (int)n[i];
        fftw_complex *one = fftw_alloc_complex(all);
        fftw_plan alone = fftw_plan_dft(dims, size, one, one, FFTW_FORWARD, FFTW_ESTIMATE);
        for (ptrdiff_t i = 0; i < all; i++) one[i][0] = at(i), one[i][1] = at(i + 5);
        fftw_execute(alone);
        for (ptrdiff_t i = 0; i < rows * rest; i++) wrong = fmax(wrong, fabs(one[start * rest + i][0] - data[i][0]));
        fftw_destroy_plan(alone);
        fftw_free(one);
    }
    fftw_execute(back);
    for (ptrdiff_t i = 0; i < rows * rest; i++) wrong = fmax(wrong, fabs(data[i][0] / all - at(start * rest + i)));
    MPI_Reduce(&wrong, &worst, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (!rank) printf("%d ranks, %d dimensions, %s: %s\n", ranks, dims, how ? "transposed" : "in place", worst < 1e-8 ? "right" : "wrong");
    fftw_destroy_plan(forth);
    fftw_destroy_plan(back);
    fftw_free(data);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    fftw_mpi_init();
    for (ptrdiff_t n = 60; n <= 480; n *= 2) transform(2, (ptrdiff_t[]){n, n + 9}, 0), transform(2, (ptrdiff_t[]){n, n + 9}, FFTW_MPI_TRANSPOSED_OUT);
    transform(3, (ptrdiff_t[]){48, 60, 50}, 0);
    transform(3, (ptrdiff_t[]){48, 60, 50}, FFTW_MPI_TRANSPOSED_OUT);
    MPI_Finalize();
}
