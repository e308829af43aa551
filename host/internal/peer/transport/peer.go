package transport

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/pannier/pannier/host/internal/system/pki"
)

// Peer is who is at the other end of a connection, by its certificate.
type Peer = pki.Identity

type peerKey struct{}

// PeerFrom returns who makes a call, of gRPC or of the public API. false: no certificate was shown, as on the unix
// socket.
func PeerFrom(ctx context.Context) (Peer, bool) {
	if peer, ok := ctx.Value(peerKey{}).(Peer); ok {
		return peer, true
	}
	if p, ok := grpcpeer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(authInfo); ok {
			return info.peer, true
		}
	}
	return Peer{}, false
}

// WithPeer stores who makes a call in its context. It is for a handler behind a TLS connection that is not the port's
// (pki.Certs.PeerOf).
func WithPeer(ctx context.Context, peer Peer) context.Context {
	return context.WithValue(ctx, peerKey{}, peer)
}

// ConnContext is http.Server.ConnContext for the port's connections.
func (p *Port) ConnContext(ctx context.Context, c net.Conn) context.Context {
	if conn, ok := c.(*tls.Conn); ok {
		if peer, err := p.certs.PeerOf(conn.ConnectionState()); err == nil {
			return WithPeer(ctx, peer)
		}
	}
	return ctx
}

// Bounds of calls between agents.
const (
	// MaxRequest is the size of the largest message that an agent accepts as a request, in bytes.
	MaxRequest = 4 << 20
	// maxAnswer is the size of the largest message that it accepts as an answer: a node's whole list of claims may
	// come in one.
	maxAnswer = 64 << 20
	// maxHeaders of one call, in bytes.
	maxHeaders = 64 << 10
	// maxStreams is the number of calls that may run at a time on one connection.
	maxStreams = 1000
	// readBuffer is what a server keeps for each connection, in bytes.
	readBuffer = 4 << 10
	// A connection that is in use and silent for this long is pinged, and closed if there is no answer.
	silence, patience = 10 * time.Second, 5 * time.Second
)

// BodyTimeout bounds the time in which a request must arrive, of a call between agents or of the API.
const BodyTimeout = 30 * time.Second

// ServerOptions are required for a gRPC server on Port.GRPC.
func (p *Port) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(verified{p}),
		grpc.ConnectionTimeout(HandshakeTimeout),
		grpc.MaxRecvMsgSize(MaxRequest),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		// Thousands of nodes are silent most of the time, and their messages are small.
		grpc.ReadBufferSize(readBuffer),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 3 * silence, Timeout: patience, MaxConnectionIdle: 2 * unused,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: silence / 2}),
	}
}

// authInfo passes the peer of a connection to gRPC.
type authInfo struct {
	credentials.CommonAuthInfo
	peer Peer
}

func (authInfo) AuthType() string { return "pannier" }

func newAuthInfo(peer Peer) authInfo {
	return authInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, peer}
}

// verified is the credentials of a server whose connections the port has verified.
type verified struct {
	port *Port
}

func (w verified) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, ok := raw.(*tls.Conn)
	if !ok {
		return nil, nil, fmt.Errorf("serve calls between agents: a %T is no connection of the port", raw)
	}
	peer, err := w.port.certs.PeerOf(conn.ConnectionState())
	if err != nil {
		return nil, nil, err
	}
	refused := func(err error) {
		w.port.log.refused("a connection was refused", err, "address", raw.RemoteAddr())
	}
	return newMetered(conn, peer, w.port.limits.Bytes(), refused), newAuthInfo(peer), nil
}

func (w verified) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, fmt.Errorf("these credentials are a server's")
}

func (w verified) Info() credentials.ProtocolInfo          { return protocolInfo }
func (w verified) Clone() credentials.TransportCredentials { return w }
func (w verified) OverrideServerName(string) error         { return nil }

var protocolInfo = credentials.ProtocolInfo{SecurityProtocol: "tls"}
