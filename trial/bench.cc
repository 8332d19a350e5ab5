// Times variants (XLA_GPU_TRIAL) of decode by turns in one process.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <atomic>
#include <thread>

#include "src/cuda/gpu_testing.h"
#include "src/ops/paged_attention/cuda/launch.h"

using namespace xla_gpu;
using namespace xla_gpu::paged_attention;
using cuda::CallDriver;
using cuda::CUresult;
using cuda::DevicePointer;

struct TheShape {
  std::string name;
  std::vector<int> queries, contexts;
  int qh = 32, kvh = 8, d = 128, page = 16, window = 0;
  bool fp8 = false;
  int table = 0;  // width in keys, else the longest
};
TheShape Uniform(std::string name, int b, int ctx, int q = 1) {
  TheShape s;
  s.name = name;
  s.queries.assign(b, q);
  s.contexts.assign(b, ctx);
  return s;
}

template <typename T>
DevicePointer Upload(const std::vector<T>& v) {
  DevicePointer p = 0;
  CallDriver("cuMemAlloc_v2", static_cast<CUresult (*)(DevicePointer*, size_t)>(nullptr), &p,
             std::max<size_t>(v.size() * sizeof(T), 256));
  CallDriver("cuMemcpyHtoD_v2",
             static_cast<CUresult (*)(DevicePointer, const void*, size_t)>(nullptr), p,
             static_cast<const void*>(v.data()), v.size() * sizeof(T));
  return p;
}
void Free(DevicePointer p) { CallDriver("cuMemFree_v2", static_cast<CUresult (*)(DevicePointer)>(nullptr), p); }
DevicePointer Alloc(size_t n) {
  DevicePointer p = 0;
  CallDriver("cuMemAlloc_v2", static_cast<CUresult (*)(DevicePointer*, size_t)>(nullptr), &p, n);
  return p;
}
void Download(void* to, DevicePointer from, size_t n) {
  CallDriver("cuMemcpyDtoH_v2", static_cast<CUresult (*)(void*, DevicePointer, size_t)>(nullptr), to, from, n);
}

inline Status Of(const Status& s) { return s; }
template <typename T> Status Of(const StatusOr<T>& s) { return s.ok() ? OkStatus() : s.status(); }
#define CHECK_OK(x) do { Status st = Of(x); if (!st.ok()) { printf("FAILED %s: %s\n", #x, st.ToString().c_str()); fflush(stdout); return false; } } while (0)

struct Variant {
  std::shared_ptr<const cuda::Kernel> schedule;
  cuda::LaunchConfig schedule_launch;
  std::unique_ptr<Attention> attention;
  std::unique_ptr<cuda::Graph> graph;
  std::vector<double> times;
  std::string kinds;
};

bool warm = false;
double budget = 1e9;
DevicePointer pool = 0;
size_t pool_bytes = 0;

float Bf16(unsigned short x) { unsigned y = static_cast<unsigned>(x) << 16; float f; memcpy(&f, &y, 4); return f; }

Problem ProblemOf(const TheShape& s) {
  Problem p;
  p.query_dtype = p.out_dtype = DType::kBF16;
  p.cache_dtype = s.fp8 ? DType::kF8E4M3FN : DType::kBF16;
  for (int q : s.queries) p.tokens += q;
  p.q_heads = s.qh, p.kv_heads = s.kvh, p.head_dim = s.d, p.page_size = s.page;
  for (int c : s.contexts) p.num_pages += (c + s.page - 1) / s.page;
  p.max_seqs = s.queries.size();
  int most = *std::max_element(s.contexts.begin(), s.contexts.end());
  p.max_pages_per_seq = (std::max(most, s.table) + s.page - 1) / s.page;
  p.k = {0, int64_t{s.page} * 2 * s.kvh * s.d, int64_t{2} * s.kvh * s.d, int64_t{2} * s.d};
  p.v = p.k;
  p.v.offset = s.d;
  p.sliding_window = s.window;
  p.scale = 1.0f / std::sqrt(static_cast<float>(s.d));
  return p;
}

std::vector<std::pair<cuda::KernelSpec, uint32_t>> wanted;
void Want(const KernelLaunch& l) { wanted.emplace_back(l.spec, l.config.dynamic_shared_bytes); }
void CompileAll() {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::thread::hardware_concurrency(); ++i) {
    threads.emplace_back([&] {
      for (size_t k; (k = next++) < wanted.size();) {
        auto got = cuda::GetKernel(wanted[k].first, 0, wanted[k].second);
        if (!got.ok()) printf("%s\n", got.status().ToString().c_str());
      }
    });
  }
  for (auto& t : threads) t.join();
}
bool collect = false, with_memset = true;
double Now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }

bool Measure(const TheShape& s, const std::vector<int>& trials, int rounds, bool stamps) {
  const Problem p = ProblemOf(s);
  auto device = cuda::GetDeviceInfo(0);
  CHECK_OK(device);
  if (collect) {
    for (int trial : trials) {
      setenv("XLA_GPU_TRIAL", std::to_string(trial).c_str(), 1);
      auto config = ChooseConfig(p, **device);
      CHECK_OK(config);
      const Launches launches = MakeLaunches(p, *config);
      if (config->decode_cluster == 0) Want(launches.schedule);
      for (auto& l : launches.attend) Want(l);
    }
    return true;
  }
  const int64_t element = s.fp8 ? 1 : 2;
  const int64_t copy_bytes = p.num_pages * p.k.page_stride * element;
  int copies = std::max<int64_t>(2, (int64_t{320} << 20) / copy_bytes + 1);
  copies = std::min<int64_t>({copies, 96, static_cast<int64_t>(pool_bytes) / copy_bytes});
  if (warm) copies = 1;
  std::mt19937 rng(5);
  std::vector<int> order(p.num_pages), table(p.max_seqs * p.max_pages_per_seq, 0), starts{0}, lens;
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), rng);
  size_t at = 0;
  for (size_t i = 0; i < s.queries.size(); ++i) {
    starts.push_back(starts.back() + s.queries[i]);
    lens.push_back(s.contexts[i]);
    for (int j = 0; j < (s.contexts[i] + s.page - 1) / s.page; ++j) table[i * p.max_pages_per_seq + j] = order[at++];
  }
  std::vector<unsigned short> q(p.tokens * p.q_heads * p.head_dim);
  std::normal_distribution<float> normal;
  for (auto& x : q) { float f = normal(rng); unsigned u; memcpy(&u, &f, 4); x = (u + 0x8000) >> 16; }
  const size_t out_bytes = q.size() * 2;
  DevicePointer dq = Upload(q), dt = Upload(table), ds = Upload(starts), dl = Upload(lens),
                dn = Upload(std::vector<int>{static_cast<int>(p.max_seqs)}), out = Alloc(out_bytes),
                work = Alloc(WorkspaceBytes(p)), stamp = Alloc(1 << 20);
  cuda::Stream stream;
  std::map<int, Variant> variants;
  std::vector<std::vector<unsigned short>> outs;
  const auto call = [&](Variant& v, int copy) -> Status {
    Buffers b{};
    b.query = reinterpret_cast<void*>(dq);
    b.k_cache = b.v_cache = reinterpret_cast<void*>(pool + copy * copy_bytes);
    b.context_lens = reinterpret_cast<int*>(dl), b.block_tables = reinterpret_cast<int*>(dt);
    b.query_start_loc = reinterpret_cast<int*>(ds), b.num_seqs = reinterpret_cast<int*>(dn);
    b.out = reinterpret_cast<void*>(out), b.workspace = reinterpret_cast<void*>(work);
    XLA_GPU_ASSIGN_OR_RETURN(Params params, v.attention->ParamsOf(b));
    params.stamps = reinterpret_cast<void*>(stamp);
    if (v.schedule) {
      void* const arguments[] = {&params};
      XLA_GPU_RETURN_IF_ERROR(v.schedule->Launch(v.schedule_launch, arguments, stream.get()));
    }
    return v.attention->Launch(params, stream.get());
  };
  std::ostringstream line;
  line << s.name << " |";
  const auto fill = [&](DevicePointer to, unsigned char x, size_t n) {
    CallDriver("cuMemsetD8_v2", static_cast<CUresult (*)(DevicePointer, unsigned char, size_t)>(nullptr), to, x, n);
    cuda::SynchronizeDevice();
  };
  int calls = 0;
  for (int trial : trials) {
    Variant& v = variants[trial];
    setenv("XLA_GPU_TRIAL", std::to_string(trial).c_str(), 1);
    auto config = ChooseConfig(p, **device);
    CHECK_OK(config);
    const Launches launches = MakeLaunches(p, *config);
    v.kinds = config->decode_cluster > 0 ? "cluster" : "line";
    for (auto& l : launches.attend) v.kinds += " " + l.spec.entry.substr(16);
    if (config->decode_cluster == 0) {
      v.schedule_launch = launches.schedule.config;
      auto kernel = cuda::GetKernel(launches.schedule.spec, 0, 0);
      CHECK_OK(kernel);
      v.schedule = *kernel;
    }
    auto attention = Attention::Load(p, *config, 0);
    CHECK_OK(attention);
    v.attention = std::make_unique<Attention>(std::move(*attention));
    if (warm) continue;
    printf(" %d", trial); fflush(stdout);
    fill(out, 0xff, out_bytes);
    fill(work, 0xff, std::min<size_t>(WorkspaceBytes(p), 64 << 20));
    CHECK_OK(call(v, 0));
    stream.Synchronize();
    outs.emplace_back(out_bytes / 2);
    Download(outs.back().data(), out, out_bytes);
    double worst = 0, norm = 0;
    for (size_t i = 0; i < q.size(); ++i) {
      const double a = Bf16(outs[0][i]), b = Bf16(outs.back()[i]);
      if (!(std::abs(a - b) <= 1e30)) { worst = NAN; break; }
      worst += (a - b) * (a - b), norm += a * a;
    }
    const double error = std::sqrt(worst / norm);
    if (!(error < 2e-3)) line << " [" << trial << " WRONG " << error << "]";
    // once timed
    const double begin = Now();
    for (int i = 0; i < copies; ++i) CHECK_OK(call(v, i));
    stream.Synchronize();
    const double took = Now() - begin;
    const int times = calls > 0 ? calls / copies : std::clamp<int>(std::lround(0.002 / took), 1, 32);
    calls = times * copies;
    printf("."); fflush(stdout);
    const auto capture = [&] {
      v.graph = std::make_unique<cuda::Graph>(stream, [&] {
        if (with_memset) (**cuda::GetDriver()).cuMemsetD8Async(out, 0xff, out_bytes, stream.get());
        for (int i = 0; i < calls; ++i) { Status st = call(v, copies - 1 - i % copies); if (!st.ok()) { printf("%s\n", st.ToString().c_str()); break; } }
      });
    };
    try {
      capture();
    } catch (const std::exception& error) {
      printf("capture behind a memset failed: %s\n", error.what());
      with_memset = false;
      capture();
    }
    v.graph->Launch(stream);
    stream.Synchronize();
    std::vector<unsigned short> again(out_bytes / 2);
    Download(again.data(), out, out_bytes);
    printf(","); fflush(stdout);
    if (again != outs.back()) line << " [" << trial << " DIFFERS IN A GRAPH]";
  }
  if (!warm && stamps) {
    for (auto& [trial, v] : variants) {
      fill(stamp, 0, 1 << 20);
      v.graph->Launch(stream);
      stream.Synchronize();
      std::vector<unsigned long long> x(1 << 14);
      Download(x.data(), stamp, x.size() * 8);
      const int blocks = v.kinds[0] == 'c' ? s.kvh * (s.kvh <= 4 ? 16 : 8) : 132;
      unsigned long long zero = v.schedule ? x[16 * 1000] : ~0ull;
      if (!v.schedule) for (int b = 0; b < blocks; ++b) zero = std::min(zero, x[b * 16]);
      printf("\nstamps %s, %d (%s), us from the schedule's start, min median max:", s.name.c_str(), trial, v.kinds.c_str());
      if (v.schedule) printf(" schedule end %.2f;", (x[16 * 1000 + 1] - zero) * 1e-3);
      const char* names[] = {"block begins", "wait over", "first copy", "last copy", "slot taken", "first keys", "computed", "written"};
      for (int i = 0; i < 8; ++i) {
        std::vector<double> y;
        for (int b = 0; b < blocks; ++b) y.push_back((static_cast<double>(x[b * 16 + i]) - static_cast<double>(zero)) * 1e-3);
        std::sort(y.begin(), y.end());
        printf(" %s %.2f %.2f %.2f;", names[i], y[0], y[y.size() / 2], y.back());
      }
      const char* sums[] = {"waits for keys", "holds them", "loader finds", "loader waits"};
      for (int i = 8; i < 12; ++i) {
        double sum = 0, most = 0;
        for (int b = 0; b < blocks; ++b) sum += x[b * 16 + i], most = std::max<double>(most, x[b * 16 + i]);
        printf(" %s %.0f (most %.0f) cycles a block;", sums[i - 8], sum / blocks / calls, most / calls);
      }
      printf("\n");
    }
    fflush(stdout);
  } else if (!warm) {
    cuda::CUevent a, b;
    auto& driver = **cuda::GetDriver();
    driver.cuEventCreate(&a, 0), driver.cuEventCreate(&b, 0);
    for (int r = 0; r <= rounds; ++r) {
      for (size_t i = 0; i < trials.size(); ++i) {
        Variant& v = variants[trials[(r + i) % trials.size()]];
        driver.cuEventRecord(a, stream.get());
        v.graph->Launch(stream);
        driver.cuEventRecord(b, stream.get());
        driver.cuEventSynchronize(b);
        float ms = 0;
        driver.cuEventElapsedTime(&ms, a, b);
        if (r > 0) v.times.push_back(ms * 1e3 / calls);
      }
    }
    for (int trial : trials) {
      auto& t = variants[trial].times;
      std::sort(t.begin(), t.end());
      char text[64];
      snprintf(text, sizeof text, " %d: %.2f (%.2f)", trial, t[t.size() / 2], t[0]);
      line << text;
    }
    printf("\n%s  [%s]\n", line.str().c_str(), variants[trials[0]].kinds.c_str());
    fflush(stdout);
  }
  for (DevicePointer x : {dq, dt, ds, dl, dn, out, work, stamp}) Free(x);
  return true;
}

int main(int argc, char** argv) {
  // bench [warm|time] FILE: lines "rounds stamps trial,trial,... regex-free shape fields"
  warm = !strcmp(argv[1], "warm");
  auto driver = cuda::GetDriver();
  if (!driver.ok()) { printf("%s\n", driver.status().ToString().c_str()); return 1; }
  cuda::ScopedPrimaryContext context(**driver, 0);
  pool_bytes = warm ? 1 << 20 : size_t{2200} << 20;
  pool = Alloc(pool_bytes);
  if (!warm) {
    std::mt19937 rng(7);
    std::vector<unsigned short> some(32 << 20);
    std::normal_distribution<float> normal;
    std::vector<unsigned short> table(1 << 16);
    for (auto& x : table) { float f = normal(rng); unsigned u; memcpy(&u, &f, 4); x = (u + 0x8000) >> 16; }
    unsigned long long state = 88172645463325252ull;
    for (auto& x : some) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; x = table[state >> 20 & 0xffff]; }
    // as fp8 the low bytes are random, and may be NaN: 0x7f and 0xff
    for (auto& x : some) { if ((x & 0x7f) == 0x7f) x ^= 1; }
    CallDriver("cuMemcpyHtoD_v2", static_cast<CUresult (*)(DevicePointer, const void*, size_t)>(nullptr), pool, static_cast<const void*>(some.data()), some.size() * 2);
    for (size_t at = some.size() * 2; at < pool_bytes; at += some.size() * 2) {
      (**driver).cuMemcpyDtoDAsync(pool + at, pool, std::min(some.size() * 2, pool_bytes - at), nullptr);
    }
    cuda::SynchronizeDevice();
  }
  std::string line;
  const double begin = Now(), limit = argc > 3 ? atof(argv[3]) : 1e9;
  for (int pass = 0; pass < (warm ? 1 : 2); ++pass) {
  collect = pass == 0;
  std::ifstream file(argv[2]);
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    if (Now() - begin > limit) { printf("out of time\n"); break; }
    std::istringstream in(line);
    int rounds, stamps;
    std::string trials_text, word;
    in >> rounds >> stamps >> trials_text;
    std::vector<int> trials;
    std::istringstream ts(trials_text);
    while (std::getline(ts, word, ',')) trials.push_back(atoi(word.c_str()));
    TheShape s;
    s.name = line.substr(line.find(trials_text) + trials_text.size() + 1);
    int b = 1, ctx = 1024, nq = 1, most = 0, least = 1;
    std::mt19937 rng(11);
    while (in >> word) {
      const auto eq = word.find('=');
      const std::string k = word.substr(0, eq), v = word.substr(eq + 1);
      const int n = atoi(v.c_str());
      if (k == "b") b = n; else if (k == "ctx") ctx = n; else if (k == "q") nq = n; else if (k == "U") most = n;
      else if (k == "qh") s.qh = n; else if (k == "kvh") s.kvh = n; else if (k == "d") s.d = n;
      else if (k == "page") s.page = n; else if (k == "fp8") s.fp8 = n; else if (k == "window") s.window = n; else if (k == "table") s.table = n;
      else if (k == "first") {  // "q:ctx" in front
        s.queries.push_back(n), s.contexts.push_back(atoi(v.c_str() + v.find(':') + 1));
      } else printf("? %s\n", word.c_str());
    }
    for (int i = 0; i < b; ++i) { s.queries.push_back(nq), s.contexts.push_back(most ? least + static_cast<int>(rng() % most) : ctx); }
    for (size_t i = 0; i < s.queries.size(); ++i) s.contexts[i] = std::max(s.contexts[i], s.queries[i]);
    try { Measure(s, trials, rounds, stamps != 0); } catch (const std::exception& error) { printf("%s: %s\n", s.name.c_str(), error.what()); fflush(stdout); }
  }
  if (collect) { CompileAll(); printf("kernels after %.1f s\n", Now() - begin); fflush(stdout); }
  }
  printf("done in %.1f s\n", Now() - begin);
}
