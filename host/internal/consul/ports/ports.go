// Package ports allocates the node's ports to workloads, each to one at a time.
//
// A port is allocated only if no other workload has it and no program listens on it at that moment, on all addresses
// or, where it is asked for on one, on that. Otherwise the caller learns at once what is in the way. The package keeps
// nothing on disk: after a restart of the host, Restore puts back the ports in the workloads' records before any new
// port is allocated.
package ports

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/pannier/pannier/cluster/claim"
)

// The default range for ports that are not static. It is Nomad's.
const (
	DefaultMin = 20000
	DefaultMax = 32000
)

// ErrTaken means that another workload has the port, or that another program listens on it.
var ErrTaken = errors.New("the port is taken")

// ErrExhausted means that no port of the range is free.
var ErrExhausted = errors.New("no port is free")

// ErrQuota means that the workloads of a namespace may not have further ports of the range.
var ErrQuota = errors.New("the namespace has too many ports")

// Request asks for one port.
type Request struct {
	Label  string // for errors
	Static int    // 0: any free port of the range
	// Address is the one that a TCP listener on a static port will have; empty: any, of TCP and UDP.
	Address string
}

// hold is what a holder has of a port; an empty address is all of them.
type hold struct {
	holder  claim.WorkloadRef
	address string
}

// Allocator records which workload has which port of this node. It is safe for concurrent use.
type Allocator struct {
	min, max, quota int

	mu      sync.Mutex
	holders map[int][]hold // by port
}

// New returns an allocator that picks ports from first to last. The workloads of one namespace get at most quota of
// them, static ones included.
func New(first, last, quota int) *Allocator {
	return &Allocator{min: first, max: last, quota: quota, holders: map[int][]hold{}}
}

// Take allocates the requested ports to a holder, in the same order, or none of them. A static port may be outside
// the range. The error is ErrTaken or ErrExhausted and names the label and whatever is in the way.
func (a *Allocator) Take(holder claim.WorkloadRef, want ...Request) (got []int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.checkQuota(holder.Namespace, want); err != nil {
		return nil, err
	}
	got = make([]int, len(want))
	defer func() {
		if err != nil {
			for n, r := range want {
				a.forget(got[n], hold{holder, r.Address})
			}
			got = nil
		}
	}()
	for n, r := range want { // static ports first, so that none of them is picked for another request
		if r.Static == 0 {
			continue
		}
		if err := a.free(holder.Namespace, r.Static, r.Address); err != nil {
			return got, fmt.Errorf("port %q: %w", r.Label, err)
		}
		got[n] = r.Static
		a.give(r.Static, hold{holder, r.Address})
	}
	for n, r := range want {
		if r.Static != 0 {
			continue
		}
		if got[n], err = a.pick(); err != nil {
			return got, fmt.Errorf("port %q: %w", r.Label, err)
		}
		a.give(got[n], hold{holder: holder})
	}
	return got, nil
}

func (a *Allocator) checkQuota(namespace string, want []Request) error {
	has, more := 0, 0
	for p, all := range a.holders {
		if a.inRange(p) && slices.ContainsFunc(all, func(h hold) bool { return h.holder.Namespace == namespace }) {
			has++
		}
	}
	for _, r := range want {
		if r.Static == 0 || a.inRange(r.Static) {
			more++
		}
	}
	if more > 0 && has+more > a.quota {
		return fmt.Errorf("namespace %q: %w: its workloads have %d of %d to %d on this node, %d more are asked for, and %d are "+
			"allowed (ports { max_per_namespace } in the agent's configuration)", namespace, ErrQuota, has, a.min, a.max, more,
			a.quota)
	}
	return nil
}

func (a *Allocator) inRange(port int) bool { return port >= a.min && port <= a.max }

// Restore records the ports that a holder had before a restart of the host. Its programs may listen on them
// already. ErrTaken: another holder has one of them.
func (a *Allocator) Restore(holder claim.WorkloadRef, ports ...int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range ports {
		if h, taken := a.held(p, ""); taken && h != holder {
			return heldError(p, h, holder.Namespace)
		}
	}
	for _, p := range ports {
		a.give(p, hold{holder: holder})
	}
	return nil
}

// HoldListener allocates a port on one address to a holder whose proxy may listen there already; added: the holder did
// not have it. ErrTaken: another holder has it.
func (a *Allocator) HoldListener(holder claim.WorkloadRef, address string, port int) (added bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch h, taken := a.held(port, address); {
	case !taken:
		a.give(port, hold{holder, address})
		return true, nil
	case h != holder:
		return false, heldError(port, h, holder.Namespace)
	}
	return false, nil
}

// Holds reports whether a holder has a static port.
func (a *Allocator) Holds(holder claim.WorkloadRef, r Request) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	h, taken := a.held(r.Static, r.Address)
	return taken && h == holder
}

// Release frees all ports of a holder. It does nothing if there are none.
func (a *Allocator) Release(holder claim.WorkloadRef) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for p, all := range a.holders {
		for _, h := range slices.Clone(all) {
			if h.holder == holder {
				a.forget(p, h)
			}
		}
	}
}

// ReleaseListeners frees the static ports that a holder took for single addresses.
func (a *Allocator) ReleaseListeners(holder claim.WorkloadRef, listeners ...Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range listeners {
		a.forget(l.Static, hold{holder, l.Address})
	}
}

// Held returns how many ports are held.
func (a *Allocator) Held() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.holders)
}

func (a *Allocator) give(port int, h hold) {
	if !slices.Contains(a.holders[port], h) {
		a.holders[port] = append(a.holders[port], h)
	}
}

func (a *Allocator) forget(port int, h hold) {
	rest := slices.DeleteFunc(a.holders[port], func(o hold) bool { return o == h })
	if a.holders[port] = rest; len(rest) == 0 {
		delete(a.holders, port)
	}
}

// held returns who has a port on an address.
func (a *Allocator) held(port int, address string) (holder claim.WorkloadRef, is bool) {
	for _, h := range a.holders[port] {
		if everywhere(h.address) || everywhere(address) || h.address == address {
			return h.holder, true
		}
	}
	return holder, false
}

// everywhere reports whether an address stands for all of the node's.
func everywhere(address string) bool {
	ip, err := netip.ParseAddr(address)
	return address == "" || err == nil && ip.IsUnspecified()
}

// pick finds a free port, starting at a random one, so that a port that was just released is not reused while
// others may still connect to it.
func (a *Allocator) pick() (int, error) {
	size := a.max - a.min + 1
	if size <= 0 {
		return 0, fmt.Errorf("%w: the range %d to %d is empty", ErrExhausted, a.min, a.max)
	}
	start := rand.IntN(size)
	for n := range size {
		p := a.min + (start+n)%size
		if a.free("", p, "") == nil {
			return p, nil
		}
	}
	return 0, fmt.Errorf("%w: all of %d to %d are held by workloads or used by other programs", ErrExhausted, a.min, a.max)
}

func (a *Allocator) free(namespace string, port int, address string) error {
	if h, taken := a.held(port, address); taken {
		return heldError(port, h, namespace)
	}
	if address != "" {
		return unusedOn(address, port)
	}
	return unused(port)
}

func heldError(port int, holder claim.WorkloadRef, namespace string) error {
	return fmt.Errorf("%w: %d is held by %s", ErrTaken, port, holder.SeenFrom(namespace))
}

// unused fails if a program listens on the port, on any address of the node.
func unused(port int) error {
	address := net.JoinHostPort("", strconv.Itoa(port))
	var cfg net.ListenConfig
	stream, err := cfg.Listen(context.Background(), "tcp", address)
	if err == nil {
		_ = stream.Close() // opened only for the test
		var packets net.PacketConn
		if packets, err = cfg.ListenPacket(context.Background(), "udp", address); err == nil {
			_ = packets.Close() // likewise
			return nil
		}
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return usedError(port)
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		err = call
	}
	return fmt.Errorf("see whether port %d is free: %w", port, err)
}

// unusedOn fails if a program listens on the port by TCP, on this address or on all. An address that this node does not
// have is a port of a network namespace, about which nothing is known here.
func unusedOn(address string, port int) error {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err == nil {
		_ = l.Close() // opened only for the test
		return nil
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return usedError(port)
	}
	return nil
}

func usedError(port int) error {
	return fmt.Errorf("%w: %d is used by a program that is not a workload's (see: ss -lntup sport = :%d)", ErrTaken, port,
		port)
}
