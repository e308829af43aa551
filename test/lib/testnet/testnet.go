// Package testnet gives tests and demonstrations separate hosts: network namespaces whose packets pass through
// this process, which can drop, delay or block them.
//
// A namespace has no name and disappears with this process and the processes in it. Needs root and /dev/net/tun.
package testnet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Link is what happens to packets from one host to another. The zero value passes all.
type Link struct {
	Cut   bool
	Loss  float64       // the share of packets that is lost, 0 to 1
	Delay time.Duration // of each packet
}

// Net is a set of hosts and the links between them. Its methods may be called at any time.
type Net struct {
	home  *os.File // the namespace of this process
	wires sync.WaitGroup

	mu     sync.Mutex
	hosts  map[netip.Addr]*Host
	links  map[[2]string]Link
	chance *rand.Rand
	closed bool
	broken []error // wires that could not be read
}

// Host is one namespace with an address.
type Host struct {
	Name string
	Addr netip.Addr

	net   *Net
	space *os.File // its network namespace
	wire  *os.File // its packets are read from and written to this file
}

// TestNet is a Net whose errors fail a test.
type TestNet struct {
	*Net
	t testing.TB
}

// New is Open for a test; the net is closed at the test's end.
func New(t testing.TB, seed uint64) *TestNet {
	t.Helper()
	n, err := Open(seed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return &TestNet{n, t}
}

// Host is Add for a test.
func (n *TestNet) Host(name string) *Host {
	n.t.Helper()
	h, err := n.Add(name)
	if err != nil {
		n.t.Fatal(err)
	}
	return h
}

// Open makes a net without hosts. seed decides which packets are lost.
func Open(seed uint64) (*Net, error) {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	return &Net{
		home: home, hosts: map[netip.Addr]*Host{}, links: map[[2]string]Link{},
		chance: rand.New(rand.NewPCG(seed, seed)),
	}, nil
}

// Close removes all hosts, and returns the errors that happened meanwhile.
func (n *Net) Close() error {
	n.mu.Lock()
	n.closed = true
	hosts := n.hosts
	n.mu.Unlock()
	var errs []error
	for _, h := range hosts {
		if err := errors.Join(h.wire.Close(), h.space.Close()); err != nil {
			errs = append(errs, fmt.Errorf("close host %s: %w", h.Name, err))
		}
	}
	n.wires.Wait()
	return errors.Join(append(append(errs, n.broken...), n.home.Close())...)
}

// Add makes a host with a new name, and connects it to all others.
func (n *Net) Add(name string) (*Host, error) {
	n.mu.Lock()
	addr := netip.AddrFrom4([4]byte{10, 77, 0, byte(len(n.hosts) + 1)})
	n.mu.Unlock()
	h := &Host{Name: name, Addr: addr, net: n}
	if err := h.open(); err != nil {
		return nil, fmt.Errorf("make host %s: %w", name, err)
	}
	n.mu.Lock()
	n.hosts[addr] = h
	n.mu.Unlock()
	n.wires.Go(h.read)
	return h, nil
}

// Set sets what happens to packets from one host to another, in this direction only.
func (n *Net) Set(from, to *Host, l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.links[[2]string{from.Name, to.Name}] = l
}

// SetAll is Set for all pairs of hosts.
func (n *Net) SetAll(l Link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, from := range n.hosts {
		for _, to := range n.hosts {
			n.links[[2]string{from.Name, to.Name}] = l
		}
	}
}

// Part cuts all links, in both directions, between these hosts and the others.
func (n *Net) Part(some ...*Host) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, from := range n.hosts {
		for _, to := range n.hosts {
			if slices.Contains(some, from) != slices.Contains(some, to) {
				n.links[[2]string{from.Name, to.Name}] = Link{Cut: true}
			}
		}
	}
}

// Heal restores all links.
func (n *Net) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.links)
}

// Do runs fn in the host's network: whatever it listens on, dials or starts in its own goroutine belongs to that
// network.
func (h *Host) Do(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if err := unix.Setns(int(h.space.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("enter the network of host %s: %w", h.Name, err)
			return
		}
		err := fn()
		// A thread that cannot return to its namespace ends with its goroutine. Children with Pdeathsig would end
		// then, too.
		if back := unix.Setns(int(h.net.home.Fd()), unix.CLONE_NEWNET); back == nil {
			runtime.UnlockOSThread()
		} else {
			err = errors.Join(err, back)
		}
		result <- err
	}()
	return <-result
}

// Dial connects as a program of the host does.
func (h *Host) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = h.Do(func() (err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// open makes the namespace, on a thread that ends with it, and its wire.
func (h *Host) open() error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // forever: the thread is in the new namespace
		result <- h.make()
	}()
	return <-result
}

func (h *Host) make() (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if h.space, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return errors.Join(fmt.Errorf("open /dev/net/tun: %w", err), h.space.Close())
	}
	if err := h.wireUp(fd); err != nil {
		return errors.Join(err, unix.Close(fd), h.space.Close())
	}
	h.wire = os.NewFile(uintptr(fd), "wire of "+h.Name)
	return nil
}

const wireName = "wire0"

// wireUp makes the TUN device (Linux Documentation/networking/tuntap.rst) with the host's address.
func (h *Host) wireUp(tun int) error {
	dev, err := unix.NewIfreq(wireName)
	if err != nil {
		return err
	}
	dev.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(tun, unix.TUNSETIFF, dev); err != nil {
		return fmt.Errorf("make the wire: %w", err)
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	for _, set := range []struct {
		ioctl uint
		addr  [4]byte
	}{{unix.SIOCSIFADDR, h.Addr.As4()}, {unix.SIOCSIFNETMASK, [4]byte{255, 255, 255, 0}}} {
		req, err := unix.NewIfreq(wireName)
		if err != nil {
			return err
		}
		if err := req.SetInet4Addr(set.addr[:]); err != nil {
			return err
		}
		if err := unix.IoctlIfreq(s, set.ioctl, req); err != nil {
			return fmt.Errorf("give the wire its address: %w", err)
		}
	}
	for _, name := range []string{"lo", wireName} {
		req, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req); err != nil {
			return fmt.Errorf("bring %s up: %w", name, err)
		}
	}
	return nil
}

// read forwards the host's packets until its wire is closed.
func (h *Host) read() {
	buf := make([]byte, 64<<10)
	for {
		n, err := h.wire.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				h.net.mu.Lock()
				h.net.broken = append(h.net.broken, fmt.Errorf("read the wire of host %s: %w", h.Name, err))
				h.net.mu.Unlock()
			}
			return
		}
		h.net.pass(h, slices.Clone(buf[:n]))
	}
}

// pass delivers a packet (IPv4, RFC 791) to its destination, or drops it.
func (n *Net) pass(from *Host, packet []byte) {
	if len(packet) < 20 || packet[0]>>4 != 4 {
		return
	}
	n.mu.Lock()
	to := n.hosts[netip.AddrFrom4([4]byte(packet[16:20]))]
	if to == nil || n.closed {
		n.mu.Unlock()
		return
	}
	between := [2]string{from.Name, to.Name}
	link := n.links[between]
	lost := link.Cut || link.Loss > 0 && n.chance.Float64() < link.Loss
	n.mu.Unlock()
	switch {
	case lost:
	case link.Delay > 0:
		time.AfterFunc(link.Delay, func() {
			n.mu.Lock()
			cut := n.links[between].Cut // packets in transit are lost
			n.mu.Unlock()
			if !cut {
				to.write(packet)
			}
		})
	default:
		to.write(packet)
	}
}

// write delivers a packet to the host. A packet that it does not accept is lost, as on any wire.
func (h *Host) write(packet []byte) { _, _ = h.wire.Write(packet) }
