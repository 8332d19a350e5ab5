inline int __popc(unsigned x) { return __builtin_popcount(x); }
