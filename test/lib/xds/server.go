package xds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// target returns a static cluster's one endpoint, in the form that gRPC dials.
func target(c *clusterv3.Cluster) (string, error) {
	if c.GetType() != clusterv3.Cluster_STATIC {
		return "", fmt.Errorf("cluster %q is %s, not STATIC", c.GetName(), c.GetType())
	}
	var endpoints []*endpointv3.LbEndpoint
	for _, locality := range c.GetLoadAssignment().GetEndpoints() {
		endpoints = append(endpoints, locality.GetLbEndpoints()...)
	}
	if len(endpoints) != 1 {
		return "", fmt.Errorf("cluster %q has %d endpoints, want one", c.GetName(), len(endpoints))
	}
	address := endpoints[0].GetEndpoint().GetAddress()
	if pipe := address.GetPipe(); pipe != nil {
		return "unix://" + pipe.GetPath(), nil
	}
	socket := address.GetSocketAddress()
	if net.ParseIP(socket.GetAddress()) == nil {
		return "", fmt.Errorf("cluster %q is STATIC and its address %q is no IP address", c.GetName(), socket.GetAddress())
	}
	return "passthrough:///" + net.JoinHostPort(socket.GetAddress(), strconv.Itoa(int(socket.GetPortValue()))), nil
}

// transport returns how the cluster's server is verified.
func transport(c *clusterv3.Cluster) (credentials.TransportCredentials, error) {
	socket := c.GetTransportSocket()
	if socket == nil {
		return insecure.NewCredentials(), nil
	}
	var conf tlsv3.UpstreamTlsContext
	if err := socket.GetTypedConfig().UnmarshalTo(&conf); err != nil {
		return nil, fmt.Errorf("cluster %q: the transport socket %q: %w", c.GetName(), socket.GetName(), err)
	}
	validation := conf.GetCommonTlsContext().GetValidationContext()
	if from := conf.GetCommonTlsContext().GetValidationContextSdsSecretConfig(); from != nil {
		secret, err := secretOf(from)
		if err != nil {
			return nil, fmt.Errorf("cluster %q: the secret with the CA: %w", c.GetName(), err)
		}
		validation = secret.GetValidationContext()
	}
	pem, err := content(validation.GetTrustedCa())
	if err != nil {
		return nil, fmt.Errorf("cluster %q: the trusted CA: %w", c.GetName(), err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("cluster %q: the trusted CA has no certificate: the proxy would trust any server", c.GetName())
	}
	return &chainCredentials{&tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"},
		ServerName: conf.GetSni(),
		// Envoy checks the chain, and a name only if one is configured.
		InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			between := x509.NewCertPool()
			for _, cert := range s.PeerCertificates[1:] {
				between.AddCert(cert)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between})
			return err
		},
	}}, nil
}

// chainCredentials are TLS credentials like Envoy's. gRPC's own refuse a server that does not select a protocol by
// ALPN, such as Consul's.
type chainCredentials struct{ conf *tls.Config }

func (c *chainCredentials) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo,
	error,
) {
	conn := tls.Client(raw, c.conf)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, nil, errors.Join(err, raw.Close())
	}
	level := credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}
	return conn, credentials.TLSInfo{State: conn.ConnectionState(), CommonAuthInfo: level}, nil
}

func (c *chainCredentials) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("this is a client's side")
}

func (c *chainCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (c *chainCredentials) Clone() credentials.TransportCredentials { return c }

func (c *chainCredentials) OverrideServerName(string) error {
	return errors.New("the bootstrap says the name")
}

func content(source *corev3.DataSource) ([]byte, error) {
	switch s := source.GetSpecifier().(type) {
	case *corev3.DataSource_InlineString:
		return []byte(s.InlineString), nil
	case *corev3.DataSource_InlineBytes:
		return s.InlineBytes, nil
	case *corev3.DataSource_Filename:
		return os.ReadFile(s.Filename)
	}
	return nil, errors.New("is not set")
}
