/* Fused fp32 kernels for CPUs; each has an equal in PyTorch operations beside its caller.

   Arrays are row-major. Nothing here changes the floating-point environment, and NaN and infinity
   pass through, because the guards of the trainer rely on them. Sums run in a fixed order for a
   fixed number of threads. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define SMALL 262144 /* elements below which starting threads costs more than it saves */

/* exp to about 2 ulp: 2^n e^r with |r| <= ln 2 / 2 (Cephes' polynomial), without branches. */
static inline float exp_fast(float x) {
    x = x > 88.0f ? 88.0f : x;
    x = x < -87.0f ? -87.0f : x;
    float shifted = x * 1.44269504088896341f + 12582912.0f;
    float n = shifted - 12582912.0f;
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union { float f; int32_t i; } bits = {.f = shifted};
    bits.i = (bits.i - 0x4b400000 + 127) << 23;
    return p * bits.f;
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + exp_fast(-x)); }

static inline float dot(const float *a, const float *b, int64_t n) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* y = x / sqrt(mean(x^2) + eps) * w; scale keeps 1 / sqrt(...) of each row when it is not null. */
void rms_norm(const float *x, const float *w, float eps, int64_t rows, int64_t width, float *y,
              float *scale) {
#pragma omp parallel for schedule(static) if (rows * width > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        const float *restrict xr = x + r * width;
        float *restrict yr = y + r * width;
        float s = 1.0f / sqrtf(dot(xr, xr, width) / (float)width + eps);
        if (scale) scale[r] = s;
        for (int64_t i = 0; i < width; i++) yr[i] = xr[i] * s * w[i];
    }
}

/* dx = (g w - x s^2 mean(g w x)) s; dw[part] sums g x s over each of `parts` runs of rows. */
void rms_norm_backward(const float *g, const float *x, const float *w, const float *scale,
                       int64_t rows, int64_t width, int64_t parts, float *dx, float *dw) {
#pragma omp parallel for schedule(static) if (rows * width > SMALL)
    for (int64_t part = 0; part < parts; part++) {
        float *restrict sum = dw + part * width;
        for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; r++) {
            const float *restrict gr = g + r * width, *restrict xr = x + r * width;
            float *restrict out = dx + r * width, s = scale[r], inner = 0.0f;
#pragma omp simd reduction(+ : inner)
            for (int64_t i = 0; i < width; i++) {
                inner += gr[i] * w[i] * xr[i];
                sum[i] += gr[i] * xr[i] * s;
            }
            float pull = inner * s * s / (float)width;
            for (int64_t i = 0; i < width; i++) out[i] = (gr[i] * w[i] - xr[i] * pull) * s;
        }
    }
}

/* y = rms_norm(o) sigmoid(gate); rows of gate are `stride` apart, those of dgate are not. */
void gated_norm(const float *o, const float *w, const float *gate, int64_t stride, float eps,
                int64_t rows, int64_t width, float *y, float *scale) {
#pragma omp parallel for schedule(static) if (rows * width > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        const float *restrict or = o + r * width, *restrict zr = gate + r * stride;
        float *restrict yr = y + r * width;
        float s = 1.0f / sqrtf(dot(or, or, width) / (float)width + eps);
        scale[r] = s;
        for (int64_t i = 0; i < width; i++) yr[i] = or[i] * s * w[i] * sigmoid(zr[i]);
    }
}

void gated_norm_backward(const float *g, const float *o, const float *w, const float *gate,
                         int64_t stride, const float *scale, int64_t rows, int64_t width,
                         int64_t parts, float *d_o, float *dgate, float *dw) {
#pragma omp parallel for schedule(static) if (rows * width > SMALL)
    for (int64_t part = 0; part < parts; part++) {
        float *restrict sum = dw + part * width;
        for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; r++) {
            const float *restrict gr = g + r * width, *restrict or = o + r * width;
            const float *restrict zr = gate + r * stride;
            float *restrict dor = d_o + r * width, *restrict dz = dgate + r * width, s = scale[r], inner = 0.0f;
#pragma omp simd reduction(+ : inner)
            for (int64_t i = 0; i < width; i++) {
                float open = sigmoid(zr[i]), through = gr[i] * open;
                inner += through * w[i] * or[i];
                sum[i] += through * or[i] * s;
                dz[i] = through * (1.0f - open) * or[i] * s * w[i];
                dor[i] = through * w[i];
            }
            float pull = inner * s * s / (float)width;
            for (int64_t i = 0; i < width; i++) dor[i] = (dor[i] - or[i] * pull) * s;
        }
    }
}

/* act[M, F] = silu(pre[:, :F]) pre[:, F:] */
void swiglu(const float *pre, int64_t rows, int64_t width, float *act) {
#pragma omp parallel for schedule(static) if (rows * width > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        const float *restrict gate = pre + r * 2 * width, *restrict up = gate + width;
        float *restrict out = act + r * width;
        for (int64_t i = 0; i < width; i++) out[i] = gate[i] * sigmoid(gate[i]) * up[i];
    }
}

void swiglu_backward(const float *pre, const float *dact, int64_t rows, int64_t width,
                     float *dpre) {
#pragma omp parallel for schedule(static) if (rows * width > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        const float *restrict gate = pre + r * 2 * width, *restrict up = gate + width;
        const float *restrict g = dact + r * width;
        float *restrict dgate = dpre + r * 2 * width, *restrict dup = dgate + width;
        for (int64_t i = 0; i < width; i++) {
            float open = sigmoid(gate[i]), silu = gate[i] * open;
            dup[i] = g[i] * silu;
            dgate[i] = g[i] * up[i] * (open + silu * (1.0f - open));
        }
    }
}

/* [B, T, (H, q|k|v, D)] -> silu -> q, k, v, each [B, H, P, D]; zero from T to P.
   Tokens of the input are `stride` apart, its rows `row` apart. */
void silu_heads(const float *x, int64_t stride, int64_t row, int64_t batch, int64_t tokens, int64_t padded,
                int64_t heads, int64_t dim, float *q, float *k, float *v) {
    float *out[3] = {q, k, v};
#pragma omp parallel for collapse(2) schedule(static) if (batch * tokens * heads * dim > SMALL)
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t part = 0; part < 3; part++) {
                float *to = out[part] + (b * heads + h) * padded * dim;
                const float *from = x + b * row + (h * 3 + part) * dim;
                for (int64_t t = 0; t < tokens; t++) {
                    const float *restrict in = from + t * stride;
                    float *restrict row_out = to + t * dim;
                    for (int64_t d = 0; d < dim; d++) row_out[d] = in[d] * sigmoid(in[d]);
                }
                memset(to + tokens * dim, 0, (padded - tokens) * dim * sizeof(float));
            }
}

/* dx[B, T, (H, q|k|v, D)] from the gradients of q, k, v and the input x before its silu. */
void silu_heads_backward(const float *x, int64_t stride, int64_t row, const float *dq, const float *dk,
                         const float *dv, int64_t batch, int64_t tokens, int64_t padded,
                         int64_t heads, int64_t dim, float *dx, int64_t dstride, int64_t drow) {
    const float *in[3] = {dq, dk, dv};
#pragma omp parallel for collapse(2) schedule(static) if (batch * tokens * heads * dim > SMALL)
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t part = 0; part < 3; part++) {
                const float *g = in[part] + (b * heads + h) * padded * dim;
                int64_t column = (h * 3 + part) * dim;
                for (int64_t t = 0; t < tokens; t++) {
                    const float *restrict xr = x + b * row + t * stride + column;
                    const float *restrict gr = g + t * dim;
                    float *restrict to = dx + b * drow + t * dstride + column;
                    for (int64_t d = 0; d < dim; d++) {
                        float open = sigmoid(xr[d]);
                        to[d] = gr[d] * open * (1.0f + xr[d] * (1.0f - open));
                    }
                }
            }
}

/* One token of R rows through a lightning layer, from its projection to before its output
   projection: state = decay state + silu(k)^T silu(v); y = rms_norm(silu(q) state) sigmoid(gate).
   x [R, 4 W] holds (H, q|k|v, D) and then the gate; state is [R, H, D, D]. */
void lightning_step(const float *x, const float *decay, const float *w, float eps, int64_t rows,
                    int64_t heads, int64_t dim, float *state, float *y) {
    int64_t width = heads * dim;
#pragma omp parallel for schedule(static) if (rows * width * dim > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        const float *xr = x + r * 4 * width, *gate = xr + 3 * width;
        float *yr = y + r * width;
        for (int64_t h = 0; h < heads; h++) {
            float qkv[3 * dim], *restrict out = yr + h * dim;
            float *s = state + (r * heads + h) * dim * dim;
            const float *restrict from = xr + h * 3 * dim;
            for (int64_t i = 0; i < 3 * dim; i++) qkv[i] = from[i] * sigmoid(from[i]);
            const float *q = qkv, *k = qkv + dim, *restrict v = qkv + 2 * dim;
            memset(out, 0, dim * sizeof(float));
            for (int64_t i = 0; i < dim; i++) {
                float *restrict si = s + i * dim, ki = k[i], qi = q[i], keep = decay[h];
                for (int64_t j = 0; j < dim; j++) {
                    float next = keep * si[j] + ki * v[j];
                    si[j] = next;
                    out[j] += qi * next;
                }
            }
        }
        float scale = 1.0f / sqrtf(dot(yr, yr, width) / (float)width + eps);
        for (int64_t i = 0; i < width; i++) yr[i] = yr[i] * scale * w[i] * sigmoid(gate[i]);
    }
}

/* total = update + alpha base; y = rms_norm(total). `total` may be `update`. */
void add_norm(const float *update, const float *base, float alpha, const float *w, float eps,
              int64_t rows, int64_t width, float *total, float *y) {
#pragma omp parallel for schedule(static) if (rows * width > SMALL)
    for (int64_t r = 0; r < rows; r++) {
        const float *ur = update + r * width, *br = base + r * width;
        float *tr = total + r * width, *yr = y + r * width;
        for (int64_t i = 0; i < width; i++) tr[i] = ur[i] + alpha * br[i];
        float s = 1.0f / sqrtf(dot(tr, tr, width) / (float)width + eps);
        for (int64_t i = 0; i < width; i++) yr[i] = tr[i] * s * w[i];
    }
}

/* Top-k experts of each token, ties to the lower index; weights are the softmax over the kept
   logits. slots[N, K] is each copy's place after sorting by expert (stable), source[M] its token,
   ends[E] where each expert's run ends. Rows with NaN keep it in their weights. */
void route(const float *logits, int64_t tokens, int64_t experts, int64_t top_k, float *weights,
           int64_t *chosen, int64_t *slots, int64_t *source, int32_t *ends) {
    memset(ends, 0, experts * sizeof(int32_t));
    for (int64_t n = 0; n < tokens; n++) {
        const float *row = logits + n * experts;
        float *wn = weights + n * top_k;
        int64_t *cn = chosen + n * top_k;
        for (int64_t k = 0; k < top_k; k++) {
            int64_t best = -1;
            for (int64_t e = 0; e < experts; e++) {
                int taken = 0;
                for (int64_t j = 0; j < k; j++) taken |= cn[j] == e;
                if (!taken && (best < 0 || row[e] > row[best] || (isnan(row[e]) && !isnan(row[best]))))
                    best = e;
            }
            cn[k] = best;
            ends[best]++;
        }
        float sum = 0.0f;
        for (int64_t k = 0; k < top_k; k++) sum += wn[k] = expf(row[cn[k]] - row[cn[0]]);
        for (int64_t k = 0; k < top_k; k++) wn[k] /= sum;
    }
    int64_t start = 0;
    for (int64_t e = 0; e < experts; e++) {
        int64_t count = ends[e];
        ends[e] = (int32_t)start;
        start += count;
    }
    for (int64_t n = 0; n < tokens; n++)
        for (int64_t k = 0; k < top_k; k++) {
            int64_t slot = ends[chosen[n * top_k + k]]++;
            slots[n * top_k + k] = slot;
            source[slot] = n;
        }
}

/* out[N, X] = sum_k weights[N, K] y[slots[N, K]] + alpha base[N, X]; base may be null. */
void combine(const float *y, const float *weights, const int64_t *slots, const float *base,
             float alpha, int64_t tokens, int64_t top_k, int64_t width, float *out) {
#pragma omp parallel for schedule(static) if (tokens * width > SMALL)
    for (int64_t n = 0; n < tokens; n++) {
        float *restrict to = out + n * width;
        for (int64_t i = 0; i < width; i++) to[i] = base ? alpha * base[n * width + i] : 0.0f;
        for (int64_t k = 0; k < top_k; k++) {
            const float *restrict from = y + slots[n * top_k + k] * width;
            float weight = weights[n * top_k + k];
            for (int64_t i = 0; i < width; i++) to[i] += weight * from[i];
        }
    }
}
