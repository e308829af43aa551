package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pannier/pannier/host/internal/peer/pki"
)

// The protocols as ALPN names them; http is the public API's.
const (
	protocolRaft = "pannier-raft/1"
	protocolGRPC = "pannier-rpc/1"
)

var protocolsHTTP = []string{"h2", "http/1.1"}

// speaks tells who may speak a protocol.
var speaks = map[string][]pki.Role{
	protocolRaft:     {pki.Server},
	protocolGRPC:     {pki.Server, pki.Node},
	protocolsHTTP[0]: {pki.Server, pki.Node, pki.CLI},
	protocolsHTTP[1]: {pki.Server, pki.Node, pki.CLI},
}

// HandshakeTimeout bounds how long the other end of a connection may take to say who
// it is, and then the agent to take the connection over.
const HandshakeTimeout = 10 * time.Second

// Config is what a Port works with.
type Config struct {
	// Addr is the host:port to listen on; port 0: any free one.
	Addr string
	// Advertise is the IP address that others dial; empty: that of Addr.
	Advertise string
	Certs     *pki.Certs
	Logger    hclog.Logger
}

// Port is the open port.
type Port struct {
	certs  *pki.Certs
	log    *refusals
	tcp    net.Listener
	addr   net.Addr
	limits *limits

	mu        sync.Mutex
	listeners map[string]*listener // by protocol

	// ctx ends with Close.
	ctx     context.Context
	cancel  context.CancelFunc
	working sync.WaitGroup
	close   sync.Once
	err     error
}

// Open listens. Protocols are spoken from when their listener is asked for.
func Open(ctx context.Context, cfg Config) (*Port, error) {
	var listen net.ListenConfig
	tcp, err := listen.Listen(ctx, "tcp", cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("listen for other agents: %w: set bind_addr or ports { rpc } in the agent's configuration", err)
	}
	addr, err := advertised(tcp.Addr(), cfg.Advertise)
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	p := &Port{
		certs: cfg.Certs, log: newRefusals(cfg.Logger), tcp: tcp, addr: addr,
		limits: newLimits(), listeners: map[string]*listener{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.working.Go(p.accept)
	return p, nil
}

// advertised is the address that others dial.
func advertised(bound net.Addr, ip string) (net.Addr, error) {
	at, err := netip.ParseAddrPort(bound.String())
	if err != nil {
		return nil, fmt.Errorf("read the port's own address: %w", err)
	}
	if ip != "" {
		other, err := netip.ParseAddr(ip)
		if err != nil {
			return nil, fmt.Errorf("the address for other agents: %w: set advertise_addr in the agent's configuration", err)
		}
		at = netip.AddrPortFrom(other, at.Port())
	}
	if at.Addr().IsUnspecified() {
		return nil, fmt.Errorf("%s is no address that other agents can dial: set advertise_addr in the agent's configuration", at.Addr())
	}
	return net.TCPAddrFromAddrPort(at), nil
}

// Addr is where other agents reach the port.
func (p *Port) Addr() net.Addr { return p.addr }

// Raft is raft's listener; only servers get through. Closing it leaves the port open.
func (p *Port) Raft() net.Listener { return p.listen(protocolRaft) }

// GRPC is the listener of the calls between agents; only servers and nodes get
// through. Serve it with ServerOptions.
func (p *Port) GRPC() net.Listener { return p.listen(protocolGRPC) }

// HTTP is the public API's listener. Its connections are *tls.Conn after their
// handshake, so net/http speaks HTTP/2 over them; set http.Server.ConnContext to
// Port.ConnContext, and leave http.Server.TLSConfig nil.
func (p *Port) HTTP() net.Listener { return p.listen(protocolsHTTP...) }

func (p *Port) listen(protocols ...string) net.Listener {
	l := &listener{port: p, protocols: protocols, conns: make(chan net.Conn), closed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, protocol := range protocols {
		p.listeners[protocol] = l
	}
	return l
}

// spoken are the protocols that someone listens for.
func (p *Port) spoken() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, protocol := range slices.Concat([]string{protocolRaft, protocolGRPC}, protocolsHTTP) {
		if p.listeners[protocol] != nil {
			out = append(out, protocol)
		}
	}
	return out
}

// accept takes connections until the port is closed. Nothing that a connection does
// keeps it from the next one.
func (p *Port) accept() {
	const longest = time.Second
	pause := 5 * time.Millisecond
	for {
		conn, err := p.tcp.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no file descriptors left, above all: it passes
			p.log.refused("connections cannot be taken", err, "retry_in", pause)
			select {
			case <-time.After(pause):
			case <-p.ctx.Done():
				return
			}
			pause = min(2*pause, longest)
			continue
		}
		pause = 5 * time.Millisecond
		release, err := p.limits.begin(conn.RemoteAddr())
		if err != nil {
			p.log.refused("a connection was refused", err, "address", conn.RemoteAddr())
			_ = conn.Close()
			continue
		}
		p.working.Go(func() {
			defer release()
			p.welcome(conn)
		})
	}
}

// welcome sees who a connection is and hands it to the listener of its protocol.
func (p *Port) welcome(raw net.Conn) {
	ctx, cancel := context.WithTimeout(p.ctx, HandshakeTimeout)
	defer cancel()
	counted := &countedConn{Conn: raw}
	conn := tls.Server(counted, &tls.Config{
		MinVersion:         tls.VersionTLS13,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return p.handshake(), nil },
	})
	err := conn.HandshakeContext(ctx)
	if err == nil {
		err = p.admit(ctx, conn, counted)
	}
	if err != nil {
		if p.ctx.Err() == nil {
			p.log.refused("a connection was refused", err, "address", raw.RemoteAddr())
		}
		_ = counted.Close()
	}
}

// handshake is the configuration of one handshake.
func (p *Port) handshake() *tls.Config {
	cfg := p.certs.Server(p.spoken()...)
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		peer, err := p.certs.PeerOf(state)
		switch {
		case err != nil:
			return err
		case state.NegotiatedProtocol == "":
			return fmt.Errorf("%s names no protocol", peer)
		case !slices.Contains(speaks[state.NegotiatedProtocol], peer.Role):
			return fmt.Errorf("%s may not speak %s: only %v may", peer, state.NegotiatedProtocol, speaks[state.NegotiatedProtocol])
		}
		return nil
	}
	return cfg
}

// admit counts a connection whose other end has proved who it is, and hands it over.
func (p *Port) admit(ctx context.Context, conn *tls.Conn, counted *countedConn) error {
	peer, err := p.certs.PeerOf(conn.ConnectionState())
	if err != nil {
		return err
	}
	if err := p.limits.join(peer, counted); err != nil {
		return err
	}
	return p.deliver(ctx, conn)
}

func (p *Port) deliver(ctx context.Context, conn *tls.Conn) error {
	protocol := conn.ConnectionState().NegotiatedProtocol
	p.mu.Lock()
	l := p.listeners[protocol]
	p.mu.Unlock()
	if l == nil {
		return fmt.Errorf("nobody listens for %s any more", protocol)
	}
	select {
	case l.conns <- conn:
		return nil
	case <-l.closed:
		return fmt.Errorf("nobody listens for %s any more", protocol)
	case <-ctx.Done():
		return fmt.Errorf("nobody took the connection for %s within %s", protocol, HandshakeTimeout)
	}
}

// Close ends the port, its listeners and the handshakes under way. Connections that
// were taken over are closed by who took them. It may be called again.
func (p *Port) Close() error {
	p.close.Do(func() {
		p.cancel()
		p.err = p.tcp.Close()
		p.mu.Lock()
		open := p.listeners
		p.listeners = map[string]*listener{}
		p.mu.Unlock()
		for _, l := range open {
			l.end()
		}
		p.working.Wait()
	})
	return p.err
}

// listener gives the connections of one protocol.
type listener struct {
	port      *Port
	protocols []string
	conns     chan net.Conn
	closed    chan struct{}
	once      sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends the listener: its protocol is not spoken any more.
func (l *listener) Close() error {
	l.port.mu.Lock()
	for _, protocol := range l.protocols {
		if l.port.listeners[protocol] == l {
			delete(l.port.listeners, protocol)
		}
	}
	l.port.mu.Unlock()
	l.end()
	return nil
}

func (l *listener) end() { l.once.Do(func() { close(l.closed) }) }

func (l *listener) Addr() net.Addr { return l.port.addr }
