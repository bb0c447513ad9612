/* One token of R rows through the whole trunk of a model; compiled together with cpu.c.

   Weights are packed in panels of COLUMNS outputs, [panel][input][COLUMNS], zero-filled, so that a
   product of few rows reads each weight once, in order. A row's numbers do not depend on the other
   rows, nor on the number of threads: every sum runs over the inputs in order. */

#include <stdlib.h>

#ifdef __AVX512F__
#define LANES 16
#else
#define LANES 8
#endif
#define COLUMNS (2 * LANES)
#define TILE 6 /* rows whose sums stay in registers */

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

/* Floats that `pack` writes for w [outputs, inputs]. */
int64_t packed_size(int64_t outputs, int64_t inputs) {
    return (outputs + COLUMNS - 1) / COLUMNS * COLUMNS * inputs;
}

void pack(const float *w, int64_t outputs, int64_t inputs, float *to) {
    for (int64_t first = 0; first < outputs; first += COLUMNS)
        for (int64_t i = 0; i < inputs; i++)
            for (int64_t c = first; c < first + COLUMNS; c++)
                *to++ = c < outputs ? w[c * inputs + i] : 0.0f;
}

__attribute__((always_inline)) static inline void tile(const float *x, const float *w, int rows,
                                                       int64_t inputs, int64_t outputs,
                                                       int64_t columns, float *y) {
    vec sum[TILE][2];
    memset(sum, 0, sizeof sum);
    for (int64_t i = 0; i < inputs; i++) {
        vec left = *(const vec *)(w + i * COLUMNS), right = *(const vec *)(w + i * COLUMNS + LANES);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            sum[r][0] += left * x[r * inputs + i];
            sum[r][1] += right * x[r * inputs + i];
        }
    }
    if (columns == COLUMNS) {
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            *(vec *)(y + r * outputs) = sum[r][0];
            *(vec *)(y + r * outputs + LANES) = sum[r][1];
        }
    } else {
        for (int r = 0; r < rows; r++) memcpy(y + r * outputs, sum[r], columns * sizeof(float));
    }
}

/* y[rows, outputs] = x[rows, inputs] w^T of packed weights. */
void product(const float *x, const float *w, int64_t rows, int64_t inputs, int64_t outputs,
             float *y) {
    int64_t panels = (outputs + COLUMNS - 1) / COLUMNS, tiles = (rows + TILE - 1) / TILE;
#pragma omp parallel for schedule(static) if (rows * inputs * outputs > 16 * SMALL)
    for (int64_t panel = 0; panel < panels; panel++) {
        const float *from = w + panel * inputs * COLUMNS;
        int64_t rest = outputs - panel * COLUMNS, columns = rest < COLUMNS ? rest : COLUMNS;
        for (int64_t t = 0; t < tiles; t++) {
            int64_t first = rows * t / tiles, count = rows * (t + 1) / tiles - first;
            const float *xr = x + first * inputs;
            float *yr = y + first * outputs + panel * COLUMNS;
            switch (count) {
            case 6: tile(xr, from, 6, inputs, outputs, columns, yr); break;
            case 5: tile(xr, from, 5, inputs, outputs, columns, yr); break;
            case 4: tile(xr, from, 4, inputs, outputs, columns, yr); break;
            case 3: tile(xr, from, 3, inputs, outputs, columns, yr); break;
            case 2: tile(xr, from, 2, inputs, outputs, columns, yr); break;
            default: tile(xr, from, 1, inputs, outputs, columns, yr);
            }
        }
    }
}

static void rotate(float *x, const float *cosine, const float *sine, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cosine[i] - b * sine[i];
        x[i + half] = b * cosine[i] + a * sine[i];
    }
}

/* One query over `count` cached keys and values; `score` has room for them. */
static void attend(const float *q, const float *keys, const float *values, int64_t count,
                   int64_t dim, float *score, float *restrict out) {
    float scale = 1.0f / sqrtf((float)dim), largest = -INFINITY, sum = 0.0f;
    for (int64_t s = 0; s < count; s++) {
        score[s] = dot(q, keys + s * dim, dim) * scale;
        largest = score[s] > largest ? score[s] : largest;
    }
    for (int64_t s = 0; s < count; s++) score[s] = exp_fast(score[s] - largest);
    for (int64_t s = 0; s < count; s++) sum += score[s];
    memset(out, 0, dim * sizeof(float));
    for (int64_t s = 0; s < count; s++) {
        const float *restrict v = values + s * dim;
        float weight = score[s] / sum;
        for (int64_t d = 0; d < dim; d++) out[d] += weight * v[d];
    }
}

/* x [R, (H q | K k | K v) D] -> out [R, H D]; keys and values are [R, K, slots, D] and get the new
   token at each row's length. */
static void softmax_step(float *x, const int64_t *lengths, const float *cosines, const float *sines,
                         int64_t rows, int64_t heads, int64_t kv_heads, int64_t dim, int64_t half,
                         int64_t slots, float *keys, float *values, float *out) {
    int64_t width = (heads + 2 * kv_heads) * dim, group = heads / kv_heads;
#pragma omp parallel for schedule(static) if (rows * heads * dim * slots > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        float *q = x + r * width, *k = q + heads * dim, *v = k + kv_heads * dim;
        int64_t length = lengths[r];
        float *score = malloc((length + 1) * sizeof(float));
        for (int64_t h = 0; h < heads + kv_heads; h++)
            rotate(q + h * dim, cosines + r * half, sines + r * half, half);
        for (int64_t n = 0; n < kv_heads; n++) {
            float *kn = keys + (r * kv_heads + n) * slots * dim;
            float *vn = values + (r * kv_heads + n) * slots * dim;
            memcpy(kn + length * dim, k + n * dim, dim * sizeof(float));
            memcpy(vn + length * dim, v + n * dim, dim * sizeof(float));
            for (int64_t h = n * group; h < (n + 1) * group; h++)
                attend(q + h * dim, kn, vn, length + 1, dim, score, out + (r * heads + h) * dim);
        }
        free(score);
    }
}

struct shape {
    int64_t rows, hidden, layers, heads, kv_heads, dim, half, experts, top_k, inner, deepnorm;
    float alpha, eps, lightning_eps;
};

/* Addresses of one layer's weights, packed where they are matrices, and of its memory. */
struct layer {
    const float *norm, *projection, *bias, *decay, *inner_norm, *output, *second_norm, *router;
    const float *w13, *w2;
    float *first, *second; /* lightning: state, null; softmax: keys, values */
    int64_t slots;
};

/* out = alpha base + experts(x) */
static void experts_step(const struct shape *s, const struct layer *l, const float *x,
                         const float *base, float *work, int64_t *index, float *out) {
    int64_t rows = s->rows, width = s->hidden, inner = s->inner, copies = rows * s->top_k;
    float *routed = work, *pre = routed + copies * width, *act = pre + copies * 2 * inner;
    float *y = act + copies * inner, *logits = y + copies * width;
    float *weights = logits + rows * s->experts;
    if (!l->router) {
        product(x, l->w13, rows, width, 2 * inner, pre);
        swiglu(pre, rows, inner, act);
        product(act, l->w2, rows, inner, width, y);
        for (int64_t i = 0; i < rows * width; i++) out[i] = y[i] + s->alpha * base[i];
        return;
    }
    int64_t *chosen = index, *slots = chosen + copies, *source = slots + copies;
    int32_t *ends = (int32_t *)(source + copies);
    product(x, l->router, rows, width, s->experts, logits);
    route(logits, rows, s->experts, s->top_k, weights, chosen, slots, source, ends);
    for (int64_t m = 0; m < copies; m++)
        memcpy(routed + m * width, x + source[m] * width, width * sizeof(float));
    int64_t size13 = packed_size(2 * inner, width), size2 = packed_size(width, inner);
    for (int64_t e = 0, start = 0; e < s->experts; start = ends[e++])
        product(routed + start * width, l->w13 + e * size13, ends[e] - start, width, 2 * inner,
                pre + start * 2 * inner);
    swiglu(pre, copies, inner, act);
    for (int64_t e = 0, start = 0; e < s->experts; start = ends[e++])
        product(act + start * inner, l->w2 + e * size2, ends[e] - start, inner, width,
                y + start * width);
    combine(y, weights, slots, base, s->alpha, rows, s->top_k, width, out);
}

/* Feed tokens[R], whose rows hold lengths[R] tokens; hidden[R, X] is the normed output. Returns 0,
   or 1 when memory ran out. */
int64_t trunk_step(const struct shape *s, const struct layer *layers, const int64_t *tokens,
                   const int64_t *lengths, const float *cosines, const float *sines,
                   const float *embed, const float *norm, float *hidden) {
    int64_t rows = s->rows, width = s->hidden, heads = s->heads * s->dim;
    int64_t qkv = (s->heads + 2 * s->kv_heads) * s->dim, copies = rows * s->top_k;
    int64_t stream = rows * width, wide = rows * (4 * heads > qkv ? 4 * heads : qkv);
    int64_t expert = copies * (2 * width + 3 * s->inner) + rows * (s->experts + s->top_k);
    float *x = malloc((3 * stream + wide + rows * heads + expert) * sizeof(float));
    int64_t *index = malloc((3 * copies + s->experts) * sizeof(int64_t));
    if (!x || !index) {
        free(x);
        free(index);
        return 1;
    }
    float *begin = x, *normed = x + stream, *mixed = normed + stream, *projected = mixed + stream;
    float *attended = projected + wide, *work = attended + rows * heads;
    for (int64_t r = 0; r < rows; r++)
        memcpy(x + r * width, embed + tokens[r] * width, width * sizeof(float));
    for (const struct layer *l = layers; l < layers + s->layers; l++) {
        int64_t outputs = l->decay ? 4 * heads : qkv;
        rms_norm(x, l->norm, s->eps, rows, width, normed, NULL);
        product(normed, l->projection, rows, width, outputs, projected);
        for (int64_t i = 0; l->bias && i < rows * outputs; i++) projected[i] += l->bias[i % outputs];
        if (l->decay)
            lightning_step(projected, l->decay, l->inner_norm, s->lightning_eps, rows, s->heads,
                           s->dim, l->first, attended);
        else
            softmax_step(projected, lengths, cosines, sines, rows, s->heads, s->kv_heads, s->dim,
                         s->half, l->slots, l->first, l->second, attended);
        product(attended, l->output, rows, heads, width, mixed);
        add_norm(mixed, s->deepnorm ? normed : x, s->alpha, l->second_norm, s->eps, rows, width,
                 x, normed);
        experts_step(s, l, normed, s->deepnorm ? normed : x, work, index, mixed);
        float *swap = x;
        x = mixed;
        mixed = swap;
    }
    rms_norm(x, norm, s->eps, rows, width, hidden, NULL);
    free(begin);
    free(index);
    return 0;
}
