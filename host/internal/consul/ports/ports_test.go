package ports

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

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

func dynamic(n int) []Request {
	return slices.Repeat([]Request{{Label: "x"}}, n)
}

func TestNeverTwice(t *testing.T) {
	const size = 40
	first := window(t, size)
	a := New(first, first+size-1)
	var mu sync.Mutex
	var all []int
	var wg sync.WaitGroup
	for n := range 8 {
		wg.Go(func() {
			got, err := a.Take(fmt.Sprint("w", n), dynamic(5)...)
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
	if _, err := a.Take("late", dynamic(1)...); !errors.Is(err, ErrExhausted) ||
		!strings.Contains(err.Error(), fmt.Sprintf(`port "x": no port is free: all of %d to %d`, first, first+size-1)) {
		t.Errorf("got %v", err)
	}
	a.Release("w3")
	if got, err := a.Take("late", dynamic(5)...); err != nil || len(got) != 5 {
		t.Errorf("after a release: %v, %v", got, err)
	}
}

func TestAllOrNone(t *testing.T) {
	first := window(t, 4)
	a := New(first, first+1)
	if _, err := a.Take("a", Request{Label: "http", Static: first + 2}); err != nil {
		t.Fatal(err)
	}
	want := []Request{{Label: "dyn"}, {Label: "free", Static: first + 3}, {Label: "web", Static: first + 2}}
	if got, err := a.Take("b", want...); !errors.Is(err, ErrTaken) || got != nil ||
		err.Error() != fmt.Sprintf(`port "web": the port is taken: %d is held by a`, first+2) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := a.Take("b", Request{Label: "same", Static: first},
		Request{Label: "again", Static: first}); !errors.Is(err, ErrTaken) {
		t.Errorf("one static port twice: %v", err)
	}
	// A static port is never picked for another label of the same holder.
	for range 20 {
		got, err := a.Take("b", Request{Label: "dyn"}, Request{Label: "fixed", Static: first},
			Request{Label: "free", Static: first + 3})
		if err != nil || !slices.Equal(got, []int{first + 1, first, first + 3}) {
			t.Fatalf("got %v, %v", got, err)
		}
		a.Release("b")
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
			a := New(first, first+1)
			if _, err := a.Take("w", Request{Label: "http", Static: first}); !errors.Is(err, ErrTaken) ||
				!strings.Contains(err.Error(), fmt.Sprintf("%d is used by a program", first)) {
				t.Errorf("got %v", err)
			}
			if got, err := a.Take("w", dynamic(1)...); err != nil || got[0] != first+1 {
				t.Errorf("picked %v, %v", got, err)
			}
			if err := a.Restore("before", first); err != nil {
				t.Errorf("what was given before, and is used, cannot be restored: %v", err)
			}
		})
	}
}

func TestRestored(t *testing.T) {
	first := window(t, 2)
	a := New(first, first+1)
	for range 2 { // it may be repeated
		check.NoError(t, a.Restore("before", first))
	}
	if err := a.Restore("other", first+1, first); !errors.Is(err, ErrTaken) ||
		!strings.Contains(err.Error(), "held by before") {
		t.Errorf("got %v", err)
	}
	if got, err := a.Take("w", dynamic(1)...); err != nil || got[0] != first+1 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := New(5, 4).Take("w", dynamic(1)...); !errors.Is(err, ErrExhausted) {
		t.Errorf("an empty range: %v", err)
	}
}

// A listener on one address leaves the others, and has no say in UDP.
func TestListeners(t *testing.T) {
	first := window(t, 2)
	a := New(first+1, first+1)
	on := func(address string) Request { return Request{Label: "up", Static: first, Address: address} }
	for holder, r := range map[string]Request{"a": on("127.0.0.1"), "b": on("127.0.0.2"), "c": on("192.0.2.1")} {
		if got, err := a.Take(holder, r); err != nil || got[0] != first {
			t.Fatalf("%s: %v, %v", holder, got, err)
		}
	}
	for _, address := range []string{"127.0.0.1", "0.0.0.0", "::", ""} {
		if _, err := a.Take("late", on(address)); !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), "held by ") {
			t.Errorf("on %q: %v", address, err)
		}
	}
	if _, err := a.Take("d", on("127.0.0.3"), on("127.0.0.3")); !errors.Is(err, ErrTaken) {
		t.Errorf("one listener twice: %v", err)
	}
	a.Release("a")
	for _, c := range []struct {
		holder string
		added  bool
		err    error
	}{{"d", true, nil}, {"d", false, nil}, {"e", false, ErrTaken}} {
		if added, err := a.HoldListener(c.holder, "127.0.0.1", first); added != c.added || !errors.Is(err, c.err) {
			t.Errorf("%s: %v, %v", c.holder, added, err)
		}
	}
	if !a.Holds("d", on("127.0.0.1")) || a.Holds("e", on("127.0.0.1")) || a.Holds("d", on("127.0.0.9")) {
		t.Error("another holder has it")
	}
	a.Release("d")
	if _, err := a.Take("a", on("127.0.0.1")); err != nil {
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
	if _, err := a.Take("f", taken); !errors.Is(err, ErrTaken) ||
		!strings.Contains(err.Error(), fmt.Sprintf("%d is used by a program", first+1)) {
		t.Errorf("a program listens there: %v", err)
	}
	taken.Address = "127.0.0.2"
	if _, err := a.Take("f", taken); err != nil {
		t.Errorf("a program has UDP there: %v", err)
	}
}
