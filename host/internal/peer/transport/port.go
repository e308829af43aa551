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

	"github.com/pannier/pannier/host/internal/system/pki"
)

// The ALPN names of the protocols; the http ones are the public API's.
const (
	protocolRaft = "pannier-raft/1"
	protocolGRPC = "pannier-rpc/1"
)

var protocolsHTTP = []string{"h2", "http/1.1"}

// speaks says which roles may use a protocol.
var speaks = map[string][]pki.Role{
	protocolRaft:     {pki.Server},
	protocolGRPC:     {pki.Server, pki.Node},
	protocolsHTTP[0]: {pki.Server, pki.Node, pki.CLI},
	protocolsHTTP[1]: {pki.Server, pki.Node, pki.CLI},
}

// HandshakeTimeout bounds the time in which the other end of a connection must identify itself, and then the time in
// which the agent must accept the connection.
const HandshakeTimeout = 10 * time.Second

// Config configures a Port.
type Config struct {
	// Addr is the host:port to listen on; port 0: any free one.
	Addr string
	// Advertise is the IP address that others dial; empty: Addr's.
	Advertise string
	Certs     *pki.Certs
	Logger    hclog.Logger
	// Listen opens the port; nil: net.ListenConfig.Listen.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
}

// Port is the open port.
type Port struct {
	certs  *pki.Certs
	log    *refusals
	tcp    net.Listener
	addr   net.Addr
	limits *Limits

	mu        sync.Mutex
	listeners map[string]*listener // by protocol

	// ctx ends with Close.
	ctx     context.Context
	cancel  context.CancelFunc
	working sync.WaitGroup
	close   sync.Once
	err     error
}

// Open listens. A protocol is offered from when its listener is requested.
func Open(ctx context.Context, cfg Config) (*Port, error) {
	listen := cfg.Listen
	if listen == nil {
		listen = (&net.ListenConfig{}).Listen
	}
	tcp, err := listen(ctx, "tcp", cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("listen for other agents: %w: set bind_addr or ports { rpc } in the agent's configuration",
			err)
	}
	addr, err := advertised(tcp.Addr(), cfg.Advertise)
	if err != nil {
		return nil, errors.Join(err, tcp.Close())
	}
	p := &Port{
		certs: cfg.Certs, tcp: tcp, addr: addr,
		limits: NewLimits(cfg.Logger), listeners: map[string]*listener{},
	}
	p.log = p.limits.log
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.working.Go(p.accept)
	return p, nil
}

// advertised returns the address that others dial.
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
		return nil, fmt.Errorf(
			"%s is not an address that other agents can dial: set advertise_addr in the agent's configuration", at.Addr())
	}
	return net.TCPAddrFromAddrPort(at), nil
}

// Addr returns the address at which other agents reach the port.
func (p *Port) Addr() net.Addr { return p.addr }

// Limits are the port's limits, for the agent's other listeners.
func (p *Port) Limits() *Limits { return p.limits }

// Raft returns raft's listener, for servers only. Closing it leaves the port open.
func (p *Port) Raft() net.Listener { return p.listen(protocolRaft) }

// GRPC returns the listener of calls between agents, for servers and nodes only. Serve it with ServerOptions.
func (p *Port) GRPC() net.Listener { return p.listen(protocolGRPC) }

// HTTP returns the public API's listener. Its connections are *tls.Conn after their handshake, so net/http speaks
// HTTP/2 over them; set http.Server.ConnContext to Port.ConnContext, and leave http.Server.TLSConfig nil.
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

// spoken returns the protocols that have a listener.
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

// accept accepts connections until the port is closed. No connection can hold up the next one.
func (p *Port) accept() {
	const longest = time.Second
	pause := 5 * time.Millisecond
	for {
		conn, err := p.tcp.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // usually no file descriptors are left, for a while
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

// welcome identifies a connection and hands it to the listener of its protocol.
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

// handshake returns the configuration of one handshake.
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
			return fmt.Errorf("%s may not speak %s: only %v may", peer, state.NegotiatedProtocol,
				speaks[state.NegotiatedProtocol])
		}
		return nil
	}
	return cfg
}

// admit counts a connection that has identified itself, and hands it over.
func (p *Port) admit(ctx context.Context, conn *tls.Conn, counted *countedConn) error {
	peer, err := p.certs.PeerOf(conn.ConnectionState())
	if err != nil {
		return err
	}
	if err := p.limits.join(peer, conn.ConnectionState().NegotiatedProtocol, counted); err != nil {
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
		return fmt.Errorf("there is no listener for %s any more", protocol)
	}
	select {
	case l.conns <- conn:
		return nil
	case <-l.closed:
		return fmt.Errorf("there is no listener for %s any more", protocol)
	case <-ctx.Done():
		return fmt.Errorf("the connection for %s was not accepted within %s", protocol, HandshakeTimeout)
	}
}

// Close closes the port, its listeners and running handshakes. Connections that were already accepted are
// closed by the callers of Accept. It may be called again.
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

// listener accepts the connections of one protocol.
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

// Close closes the listener: its protocol is not offered any more.
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
