package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

// DefaultAddress is the default address of an agent.
const DefaultAddress = "unix:///run/pannier/pannier.sock"

const (
	dialTimeout = 5 * time.Second
	// maxMessage limits the size of an answer of the agent, in bytes.
	maxMessage = 64 << 20
)

// Client calls one agent. It is safe for concurrent use.
type Client struct {
	Volumes   hostv1connect.VolumeServiceClient
	Drivers   hostv1connect.DriverServiceClient
	Devices   hostv1connect.DeviceServiceClient
	Plugins   hostv1connect.PluginServiceClient
	Workloads hostv1connect.WorkloadServiceClient
	Tokens    hostv1connect.TokenServiceClient
	Agent     hostv1connect.AgentServiceClient
	Nodes     hostv1connect.NodeServiceClient
	Members   hostv1connect.MemberServiceClient
	Cluster   hostv1connect.ClusterServiceClient
	Operator  hostv1connect.OperatorServiceClient
	Secrets   hostv1connect.SecretsServiceClient
	System    hostv1connect.SystemServiceClient
	ACL       hostv1connect.ACLServiceClient

	close func()
}

// TokenHeader is the header with the secret of the caller's ACL token.
const TokenHeader = "X-Pannier-Token"

// Option configures a Client.
type Option func(*settings)

type settings struct {
	token        string
	tls          TLS
	interceptors []connect.Interceptor
}

// WithToken sends the secret of an ACL token with all calls. It is not sent over http://, where anyone could read it.
func WithToken(secret string) Option { return func(s *settings) { s.token = secret } }

// WithInterceptors has interceptors make all calls, such as those of connectrpc.com/otelconnect, which trace them.
func WithInterceptors(interceptors ...connect.Interceptor) Option {
	return func(s *settings) { s.interceptors = append(s.interceptors, interceptors...) }
}

// New returns a client for an agent's address: unix:///path, https://host:port or http://host:port. It does not
// connect yet: if the agent cannot be reached the first call fails.
func New(address string, options ...Option) (*Client, error) {
	var set settings
	for _, option := range options {
		option(&set)
	}
	network, target, baseURL, err := parseAddress(address)
	if err != nil {
		return nil, err
	}
	secure := strings.HasPrefix(baseURL, "https://")
	dialer := &net.Dialer{Timeout: dialTimeout}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, target)
		if err != nil {
			return nil, &UnreachableError{Address: address, Err: err}
		}
		return conn, nil
	}
	transport := &http.Transport{DialContext: dial, IdleConnTimeout: time.Minute}
	if secure {
		host, _, _ := net.SplitHostPort(target) // cannot fail: parseAddress uses JoinHostPort
		cfg, err := set.tls.config(host)
		if err != nil {
			return nil, err
		}
		transport.ForceAttemptHTTP2 = true
		transport.DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			raw, err := dial(ctx, network, target)
			if err != nil {
				return nil, err
			}
			conn, err := handshake(ctx, raw, cfg)
			if err != nil {
				return nil, &UnreachableError{Address: address, Err: err}
			}
			return conn, nil
		}
	}
	httpClient := doer{client: &http.Client{Transport: transport}, private: network == "unix" || secure, token: set.token}
	return newClient(httpClient, baseURL, set.interceptors...), nil
}

// NewOver returns a client that makes its connections by dial, for HTTP/2 without TLS. Calls wait for dial.
func NewOver(dial func(ctx context.Context) (net.Conn, error)) *Client {
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	return newClient(doer{private: true, client: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		Protocols:   protocols,
	}}}, "http://pannier")
}

func newClient(httpClient doer, baseURL string, interceptors ...connect.Interceptor) *Client {
	call := connect.WithClientOptions(connect.WithReadMaxBytes(maxMessage), connect.WithInterceptors(CheckNode()),
		connect.WithInterceptors(interceptors...))
	return &Client{
		Volumes:   hostv1connect.NewVolumeServiceClient(httpClient, baseURL, call),
		Drivers:   hostv1connect.NewDriverServiceClient(httpClient, baseURL, call),
		Devices:   hostv1connect.NewDeviceServiceClient(httpClient, baseURL, call),
		Plugins:   hostv1connect.NewPluginServiceClient(httpClient, baseURL, call),
		Workloads: hostv1connect.NewWorkloadServiceClient(httpClient, baseURL, call),
		Tokens:    hostv1connect.NewTokenServiceClient(httpClient, baseURL, call),
		Agent:     hostv1connect.NewAgentServiceClient(httpClient, baseURL, call),
		Nodes:     hostv1connect.NewNodeServiceClient(httpClient, baseURL, call),
		Members:   hostv1connect.NewMemberServiceClient(httpClient, baseURL, call),
		Cluster:   hostv1connect.NewClusterServiceClient(httpClient, baseURL, call),
		Operator:  hostv1connect.NewOperatorServiceClient(httpClient, baseURL, call),
		Secrets:   hostv1connect.NewSecretsServiceClient(httpClient, baseURL, call),
		System:    hostv1connect.NewSystemServiceClient(httpClient, baseURL, call),
		ACL:       hostv1connect.NewACLServiceClient(httpClient, baseURL, call),
		close:     httpClient.client.CloseIdleConnections,
	}
}

// Close closes the connections that no call uses. It always returns nil.
func (c *Client) Close() error {
	c.close()
	return nil
}

func parseAddress(address string) (network, target, baseURL string, err error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		if !strings.HasPrefix(path, "/") {
			return "", "", "", fmt.Errorf("address %q: unix:// and an absolute path is needed, such as %s", address,
				DefaultAddress)
		}
		// net/http requires a host in the URL, but the connection is made to the socket.
		return "unix", path, "http://pannier", nil
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" {
		return "", "", "", fmt.Errorf("address %q: unix:///path, https://host:port or http://host:port is needed, such as %s",
			address, DefaultAddress)
	}
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == "https":
		port = "443"
	default:
		port = "80"
	}
	return "tcp", net.JoinHostPort(u.Hostname(), port), u.Scheme + "://" + u.Host, nil
}

type callerKey struct{}

// WithCaller has calls with the returned context made for somebody else, with the secret of that caller's ACL token in
// place of the client's own. Empty: the caller has none, and may do what everyone may. A front door calls so for its
// users, who have no part in its own rights then.
func WithCaller(ctx context.Context, secret string) context.Context {
	return context.WithValue(ctx, callerKey{}, secret)
}

// doer adds the token to each call, and removes net/http's wrapping of UnreachableError, whose text is complete. It
// makes a query again that an agent has given up, since its program is replaced: each such answer ends a connection.
type doer struct {
	client  *http.Client
	private bool // nobody else can read what is sent
	token   string
}

func (d doer) Do(req *http.Request) (*http.Response, error) {
	caller, other := req.Context().Value(callerKey{}).(string)
	switch {
	case !d.private:
	case other:
		req.Header.Set(TokenHeader, caller)
	case d.token != "":
		req.Header.Set(TokenHeader, d.token)
	}
	resp, err := d.client.Do(req)
	if err == nil && resp.Header.Get(NotUpHeader) != "" {
		why := notUp(resp.Header.Get(NotUpHeader))
		return nil, &UnreachableError{Err: errors.Join(why, resp.Body.Close())}
	}
	for err == nil && resp.StatusCode == http.StatusRequestTimeout && req.GetBody != nil {
		_ = resp.Body.Close() // it has none
		if req.Body, err = req.GetBody(); err == nil {
			resp, err = d.client.Do(req)
		}
	}
	if unreachable := (*UnreachableError)(nil); errors.As(err, &unreachable) && req.Context().Err() == nil {
		return nil, unreachable
	}
	return resp, err
}
