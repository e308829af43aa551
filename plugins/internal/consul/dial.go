package consul

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/service"
)

// dialTimeout bounds the making of one connection, TLS included.
const dialTimeout = 10 * time.Second

// dialer makes the connections to one Consul. They end with the pool.
type dialer struct {
	pool   context.Context
	consul service.Consul
}

func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	return d.connect(ctx, network, address)
}

func (d *dialer) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	conf, err := tlsConfig(d.consul)
	if err != nil {
		return nil, err
	}
	if conf.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		conf.ServerName = host
	}
	ctx, cancel := d.bounded(ctx)
	defer cancel()
	raw, err := d.connect(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, conf)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close() // the handshake's error is the one to tell
		return nil, err
	}
	return conn, nil
}

// bounded ends after dialTimeout, and with the pool, whoever waits for the connection.
func (d *dialer) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	stop := context.AfterFunc(d.pool, cancel)
	return ctx, func() { stop(); cancel() }
}

func (d *dialer) connect(ctx context.Context, network, address string) (net.Conn, error) {
	if path, ok := strings.CutPrefix(d.consul.Address, "unix://"); ok {
		network, address = "unix", path
	}
	raw, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return d.hold(raw), nil
}

// hold closes a connection when the pool is closed, whoever has it then.
func (d *dialer) hold(raw net.Conn) net.Conn {
	return &pooledConn{Conn: raw, forget: context.AfterFunc(d.pool, func() { _ = raw.Close() })}
}

type pooledConn struct {
	net.Conn
	forget func() bool
}

func (c *pooledConn) Close() error {
	c.forget()
	return c.Conn.Close()
}

// tlsConfig reads the files of c's TLS settings. A file that is not as it should be
// is FailedPrecondition: trying again does not help.
func tlsConfig(c service.Consul) (*tls.Config, error) {
	conf := &tls.Config{ServerName: c.TLSServerName, MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "ca_file cannot be read: %v", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, status.Errorf(codes.FailedPrecondition, "ca_file %q has no PEM certificate", c.CAFile)
		}
	}
	if c.CertFile != "" || c.KeyFile != "" {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, status.Errorf(codes.FailedPrecondition, "cert_file %q and key_file %q are no key pair: %v", c.CertFile, c.KeyFile, err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return conf, nil
}
