package ports

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/test/lib/check"
)

// window returns a range of n unused ports.
func window(t *testing.T, n int) (first int) {
	t.Helper()
	for first = DefaultMin; first < DefaultMax; first += n {
		if !slices.ContainsFunc(slices.Collect(func(yield func(int) bool) {
			for p := first; p < first+n && yield(p); p++ {
			}
		}), func(p int) bool { return unused(p) != nil }) {
			return first
		}
	}
	t.Fatal("no free ports on this machine")
	return 0
}

func w(id string) claim.WorkloadRef {
	return claim.WorkloadRef{Namespace: claim.DefaultNamespace, ID: id}
}

func dynamic(n int) []Request {
	return slices.Repeat([]Request{{Label: "x"}}, n)
}

func TestNeverTwice(t *testing.T) {
	const size = 40
	first := window(t, size)
	a := New(first, first+size-1, 1000)
	var mu sync.Mutex
	var all []int
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			got, err := a.Take(w(fmt.Sprint("w", n)), dynamic(5)...)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, got...)
		})
	}
	wg.Wait()
	slices.Sort(all)
	if all = slices.Compact(all); len(all) != size || all[0] < first || all[size-1] >= first+size {
		t.Errorf("got %v", all)
	}
	if _, err := a.Take(w("late"), dynamic(1)...); !errors.Is(err, ErrExhausted) ||
		!strings.Contains(err.Error(), fmt.Sprintf(`port "x": no port is free: all of %d to %d`, first, first+size-1)) {
		t.Errorf("got %v", err)
	}
	a.Release(w("w3"))
	if got, err := a.Take(w("late"), dynamic(5)...); err != nil || len(got) != 5 {
		t.Errorf("after a release: %v, %v", got, err)
	}
}

func TestAllOrNone(t *testing.T) {
	first := window(t, 4)
	a := New(first, first+1, 1000)
	if _, err := a.Take(w("a"), Request{Label: "http", Static: first + 2}); err != nil {
		t.Fatal(err)
	}
	want := []Request{{Label: "dyn"}, {Label: "free", Static: first + 3}, {Label: "web", Static: first + 2}}
	if got, err := a.Take(w("b"), want...); !errors.Is(err, ErrTaken) || got != nil ||
		err.Error() != fmt.Sprintf(`port "web": the port is taken: %d is held by workload "a"`, first+2) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := a.Take(w("b"), Request{Label: "same", Static: first},
		Request{Label: "again", Static: first}); !errors.Is(err, ErrTaken) {
		t.Errorf("one static port twice: %v", err)
	}
	// A static port is never picked for another label of the same holder.
	for range 20 {
		got, err := a.Take(w("b"), Request{Label: "dyn"}, Request{Label: "fixed", Static: first},
			Request{Label: "free", Static: first + 3})
		if err != nil || !slices.Equal(got, []int{first + 1, first, first + 3}) {
			t.Fatalf("got %v, %v", got, err)
		}
		a.Release(w("b"))
	}
}

// A program that listens on any address blocks the port.
func TestOthersListen(t *testing.T) {
	for _, network := range []string{"tcp 127.0.0.1", "tcp 0.0.0.0", "udp 127.0.0.1"} {
		t.Run(network, func(t *testing.T) {
			first := window(t, 2)
			kind, host, _ := strings.Cut(network, " ")
			address := net.JoinHostPort(host, fmt.Sprint(first))
			if kind == "tcp" {
				l, err := net.Listen(kind, address)
				check.NoError(t, err)
				defer l.Close()
			} else {
				l, err := net.ListenPacket(kind, address)
				check.NoError(t, err)
				defer l.Close()
			}
			a := New(first, first+1, 1000)
			if _, err := a.Take(w("w"), Request{Label: "http", Static: first}); !errors.Is(err, ErrTaken) ||
				!strings.Contains(err.Error(), fmt.Sprintf("%d is used by a program", first)) {
				t.Errorf("got %v", err)
			}
			if got, err := a.Take(w("w"), dynamic(1)...); err != nil || got[0] != first+1 {
				t.Errorf("picked %v, %v", got, err)
			}
			if err := a.Restore(w("before"), first); err != nil {
				t.Errorf("what was given before, and is used, cannot be restored: %v", err)
			}
		})
	}
}

func TestRestored(t *testing.T) {
	first := window(t, 2)
	a := New(first, first+1, 1000)
	for range 2 { // it may be repeated
		check.NoError(t, a.Restore(w("before"), first))
	}
	if err := a.Restore(w("other"), first+1, first); !errors.Is(err, ErrTaken) ||
		!strings.Contains(err.Error(), `held by workload "before"`) {
		t.Errorf("got %v", err)
	}
	if got, err := a.Take(w("w"), dynamic(1)...); err != nil || got[0] != first+1 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := New(5, 4, 1000).Take(w("w"), dynamic(1)...); !errors.Is(err, ErrExhausted) {
		t.Errorf("an empty range: %v", err)
	}
}

// A namespace's workloads have no more ports of the range than its quota, and learn nothing of who has the others.
func TestQuotaOfANamespace(t *testing.T) {
	first := window(t, 6)
	a := New(first, first+4, 2)
	of := func(namespace, id string) claim.WorkloadRef { return claim.WorkloadRef{Namespace: namespace, ID: id} }
	check.NoError(t, a.Restore(of("greedy", "a"), first))
	for what, want := range map[string][]Request{
		"dynamic": dynamic(2), "static": {{Label: "x", Static: first + 1}, {Label: "y", Static: first + 2}},
		"both": {{Label: "x", Static: first + 1}, {Label: "y"}},
	} {
		got, err := a.Take(of("greedy", "b"), want...)
		if !errors.Is(err, ErrQuota) || got != nil || !strings.Contains(err.Error(), "max_per_namespace") {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	if _, err := a.Take(of("greedy", "b"), Request{Label: "x"}, Request{Label: "out", Static: first + 5}); err != nil {
		t.Error(err)
	}
	if _, err := a.Take(of("greedy", "b")); err != nil {
		t.Errorf("no port: %v", err)
	}
	if got, err := a.Take(of("modest", "a"), dynamic(2)...); err != nil || len(got) != 2 {
		t.Errorf("another namespace gets %v, %v", got, err)
	}
	_, err := a.Take(of("modest", "b"), Request{Label: "out", Static: first + 5})
	if !errors.Is(err, ErrTaken) || strings.Contains(err.Error(), "greedy") ||
		!strings.Contains(err.Error(), "is held by a workload of another namespace") {
		t.Errorf("it is told who has the port: %v", err)
	}
	a.Release(of("greedy", "a"))
	if _, err := a.Take(of("greedy", "c"), dynamic(1)...); err != nil {
		t.Error(err)
	}
}

// A listener on one address leaves the others, and has no say in UDP.
func TestListeners(t *testing.T) {
	first := window(t, 2)
	a := New(first+1, first+1, 1000)
	on := func(address string) Request { return Request{Label: "up", Static: first, Address: address} }
	for holder, r := range map[string]Request{"a": on("127.0.0.1"), "b": on("127.0.0.2"), "c": on("192.0.2.1")} {
		if got, err := a.Take(w(holder), r); err != nil || got[0] != first {
			t.Fatalf("%s: %v, %v", holder, got, err)
		}
	}
	for _, address := range []string{"127.0.0.1", "0.0.0.0", "::", ""} {
		if _, err := a.Take(w("late"), on(address)); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "held by ") {
			t.Errorf("on %q: %v", address, err)
		}
	}
	if _, err := a.Take(w("d"), on("127.0.0.3"), on("127.0.0.3")); !errors.Is(err, ErrTaken) {
		t.Errorf("one listener twice: %v", err)
	}
	a.Release(w("a"))
	for _, c := range []struct {
		holder string
		added  bool
		err    error
	}{{"d", true, nil}, {"d", false, nil}, {"e", false, ErrTaken}} {
		if added, err := a.HoldListener(w(c.holder), "127.0.0.1", first); added != c.added || !errors.Is(err, c.err) {
			t.Errorf("%s: %v, %v", c.holder, added, err)
		}
	}
	if !a.Holds(w("d"), on("127.0.0.1")) || a.Holds(w("e"), on("127.0.0.1")) || a.Holds(w("d"), on("127.0.0.9")) {
		t.Error("another holder has it")
	}
	a.Release(w("d"))
	if _, err := a.Take(w("a"), on("127.0.0.1")); err != nil {
		t.Errorf("after its release: %v", err)
	}
	if n := a.Held(); n != 1 {
		t.Errorf("%d ports are held", n)
	}

	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", fmt.Sprint(first+1)))
	check.NoError(t, err)
	defer l.Close()
	u, err := net.ListenPacket("udp", net.JoinHostPort("127.0.0.2", fmt.Sprint(first+1)))
	check.NoError(t, err)
	defer u.Close()
	taken := Request{Label: "up", Static: first + 1, Address: "127.0.0.1"}
	if _, err := a.Take(w("f"), taken); !errors.Is(err, ErrTaken) ||
		!strings.Contains(err.Error(), fmt.Sprintf("%d is used by a program", first+1)) {
		t.Errorf("a program listens there: %v", err)
	}
	taken.Address = "127.0.0.2"
	if _, err := a.Take(w("f"), taken); err != nil {
		t.Errorf("a program has UDP there: %v", err)
	}
}
