"""Random interleavings of the wide kernel's barriers: hangs, stale or overwritten stages, weights and flags."""
import random,sys
class MB:
    def __init__(s,count): s.count=count; s.phase=0; s.pending=count; s.tx=0
    def chk(s):
        if s.pending==0 and s.tx==0: s.phase+=1; s.pending=s.count
    def arrive(s): assert s.pending>0; s.pending-=1; s.chk()
    def expect(s): s.tx+=1; s.arrive()
    def complete(s): s.tx-=1; s.chk()
    def ended(s,parity): return (s.phase&1)!=parity   # phase of that parity has ended
class Place:
    def __init__(s,n,i=0,p=0): s.n=n;s.index=i;s.parity=p
    def copy(s): return Place(s.n,s.index,s.parity)
    def next(s):
        s.index+=1
        if s.index==s.n: s.index=0;s.parity^=1
    def skip(s,k):
        t=(s.index+k)//s.n; s.index+=k-t*s.n; s.parity^=t&1
def run(seed,RING,SLOTS,pieces):
    R=random.Random(seed)
    full=[MB(1) for _ in range(RING)]; empty=[MB(8) for _ in range(RING)]
    slot_full=[MB(1) for _ in range(SLOTS)]; slot_empty=[MB(1) for _ in range(SLOTS)]
    half=MB(4); sfull=MB(4); sempty=MB(1)
    content=[None]*RING; slots=[None]*SLOTS; copies=[]
    weights={}; flags={}; reading={}  # (group,place) -> set of warps that read
    nb=[{'c':0,'g':0,'or':False,'res':{}} for _ in range(2)]
    log={'early':0,'late':0}
    def named(g,pred):
        b=nb[g]; gen=b['g']; b['c']+=1; b['or']|=pred
        if b['c']==4: b['res'][gen]=b['or']; b['c']=0;b['g']+=1;b['or']=False
        while b['g']==gen: yield
        return b['res'][gen]
    def wait(m,par):
        while not m.ended(par): yield
    def loader():
        st=Place(RING); sl=Place(SLOTS); n=0; prev=None
        def load(k):
            nonlocal n
            for _ in range(k):
                yield from wait(empty[st.index],st.parity^1)
                assert not any(v==st.index for v in reading.values()),'overwritten'
                content[st.index]=None
                full[st.index].expect(); copies.append((st.index,n)); n+=1
                st.next(); yield
        for k in pieces+[None]:
            yield from wait(slot_empty[sl.index],sl.parity^1)
            slots[sl.index]=k; slot_full[sl.index].arrive(); sl.next(); yield
            if prev: yield from load(prev)
            prev=k
    def dma():
        while True:
            if copies:
                k=R.randrange(min(3,len(copies)))
                i,n=copies.pop(k); content[i]=n; full[i].complete()
                for _ in range(R.randrange(0,30)): yield
            yield
    def compute(g,w):
        st=Place(RING); sl=Place(SLOTS); sums=Place(1); turn=0; total=0
        while True:
            yield from wait(slot_full[sl.index],sl.parity)
            stages=slots[sl.index]
            if stages is None: return
            sl.next()
            yield from named(g,False)
            first=0 if turn==g else 1; place=0
            before,own,nxt=st.copy(),st.copy(),Place(RING)
            def start(o,i):
                yield from wait(full[o.index],o.parity)
                assert content[o.index]==total+i,('stale',content[o.index],total+i)
                reading[(g,w,i)]=o.index; yield
            def passing(o,i):
                yield from wait(full[o.index],o.parity)
                assert content[o.index]==total+i,'pass stale'
                empty[o.index].arrive(); yield
            def values(i):
                if i>0: yield from passing(before,i-1)
                if w==0: flags[(g,place)]=(i,full[nxt.index].ended(nxt.parity)); yield
                weights[(g,place,w)]=total+i; yield
                assert not any(k[0]==g and k[1]==place and v!=total+i for k,v in pv.items()),'weights raced'
                if (yield from named(g,R.random()<.2 and True)):
                    yield from named(g,False); weights[(g,place,w)]=total+i; yield; yield from named(g,False)
                pv[(g,place,w)]=total+i; yield
                for x in range(4): assert weights[(g,place,x)]==total+i,'weights'
            def pvdone(): 
                for x in range(4): assert weights[(g,place,x)]==pv[(g,place,w)],'weights changed'
                del pv[(g,place,w)]
            if first: own.next()
            if first<stages:
                yield from start(own,first); i=first
                while i+2<stages:
                    nxt=own.copy(); nxt.next(); nxt.next()
                    yield from values(i)
                    fi,there=flags[(g,place)]; assert fi==i,'flag'
                    if there:
                        log['early']+=1
                        yield from start(nxt,i+2); pvdone(); yield
                        del reading[(g,w,i)]; empty[own.index].arrive()
                    else:
                        log['late']+=1
                        pvdone(); yield; del reading[(g,w,i)]; empty[own.index].arrive(); yield
                        yield from start(nxt,i+2)
                    place^=1; before=own.copy(); before.next(); own=nxt; i+=2
                yield from values(i); pvdone(); yield
                del reading[(g,w,i)]; empty[own.index].arrive(); before=own.copy(); before.next()
            if (first+stages)%2==0 and stages>0: yield from passing(before,stages-1)
            st.skip(stages); turn^=stages%2; total+=stages
            yield from named(g,False)
            if g==0: yield from wait(sempty,sums.parity^1)
            else: yield from wait(half,sums.parity)
            yield; (half if g==0 else sfull).arrive(); sums.next()
    def writer():
        sl=Place(SLOTS); sums=Place(1)
        while True:
            yield from wait(slot_full[sl.index],sl.parity)
            if slots[sl.index] is None: return
            yield from wait(sfull,sums.parity)
            for _ in range(R.randrange(20)): yield
            sempty.arrive(); sums.next(); slot_empty[sl.index].arrive(); sl.next()
    pv={}
    ag={('c',g,w):compute(g,w) for g in range(2) for w in range(4)}
    ag['l']=loader(); ag['w']=writer(); d=dma()
    speed={k:R.choice([1,1,1,5,20]) for k in ag}; steps=0; dw=R.choice([0.02,.1,.5])
    while ag:
        steps+=1
        if steps>3000000: raise SystemExit(f'hang seed {seed} {list(ag)}')
        if R.random()<dw: next(d)
        k=R.choice(list(ag))
        if R.randrange(speed[k]): continue
        try: next(ag[k])
        except StopIteration: del ag[k]
    return log
tot={'early':0,'late':0}
for seed in range(int(sys.argv[1]),int(sys.argv[2])):
    R=random.Random(seed^99)
    RING,SL=R.choice([(5,3),(5,3),(10,3)])
    lg=run(seed,RING,SL,[R.choice([0,1,1,2,3,4,5,7,R.randrange(1,24)]) for _ in range(R.randrange(1,14))])
    for k in tot: tot[k]+=lg[k]
print('ok',tot)
