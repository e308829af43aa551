package conformance

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/identity"
	bootstrapv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/bootstrap/v1"
	identityv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/identity/v1"
	registrationv1 "github.com/pannier/pannier/sdk/proto/pannier/plugin/registration/v1"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// theCluster is the Pannier cluster of everything that the kit puts into a Consul.
const theCluster = "conformance"

func needsConsul(cfg *Config) string {
	if cfg.Consul.Address == "" {
		return "needs a Consul (-consul ADDRESS, Config.Consul)"
	}
	return ""
}

func needsBackend(cfg *Config) string {
	if why := needsConsul(cfg); why != "" && !cfg.OwnBackend {
		return why + ", or a backend of its own (-own-backend, Config.OwnBackend)"
	}
	return ""
}

var identityKind = &kind{
	service: identityv1.File_pannier_plugin_identity_v1_identity_proto.Services().ByName("IdentityService"),
	// Use a cluster that does not exist, because other checks make tokens at the same time.
	ask: func(ctx context.Context, conn grpc.ClientConnInterface, at backend) (string, error) {
		tokens, err := identity.NewClient(conn).List(ctx, at.consul, "nobodys")
		return fmt.Sprint(tokens), err
	},
	methods: []method{
		{"Derive", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
			req := identity.DeriveRequest{ID: uuid(), Subject: subject(name), JWT: at.r.issues.sign(subject(name), at.marker)}
			_, secret, err := identity.NewClient(conn).Derive(ctx, at.consul, req)
			if err == nil && secret != "" || at.r.cfg.OwnBackend {
				at.r.asksFor(at, asked(req.ID, name), secret)
			}
			return err
		}},
		{"Read", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, _ string) error {
			_, err := identity.NewClient(conn).Read(ctx, at.consul, at.marker+"-read")
			return err
		}},
		{"Revoke", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
			return identity.NewClient(conn).Revoke(ctx, at.consul, asked(uuid(), name), at.marker+"-revoke")
		}},
		{"List", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, _ string) error {
			_, err := identity.NewClient(conn).List(ctx, at.consul, theCluster)
			return err
		}},
	},
	missing: needsBackend,
	job:     identityJob,
	final: func(ctx context.Context, conn grpc.ClientConnInterface, at backend) error {
		_, err := identity.NewClient(conn).List(ctx, at.consul, theCluster)
		return err
	},
	refusals: []refusal{{
		"to read a token that does not exist", codes.NotFound,
		func(ctx context.Context, r *run, conn grpc.ClientConnInterface) error {
			_, err := identity.NewClient(conn).Read(ctx, r.cfg.Consul, uuid())
			return err
		},
	}},
}

func subject(name string) identity.Subject {
	return identity.Subject{Cluster: theCluster, Node: "node", Namespace: "default", Workload: name, Service: "web"}
}

// asked is the token that the kit asks for by an id.
func asked(id, name string) identity.Token {
	return identity.Token{Accessor: id, Subject: subject(name)}
}

// uuid returns a random UUID (RFC 9562, version 4).
func uuid() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

func identityJob(_ context.Context, r *run, _ grpc.ClientConnInterface, name string) ([]step, error) {
	id, secret := uuid(), ""
	return []step{
		{name: "Derive", do: func(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
			r.asksFor(r.real(), asked(id, name), secret)
			token, s, err := identity.NewClient(conn).Derive(ctx, r.cfg.Consul,
				identity.DeriveRequest{ID: id, Subject: subject(name), JWT: r.issues.sign(subject(name), "")})
			switch {
			case err != nil:
				return "", err
			case token.Accessor != id:
				return "", fmt.Errorf("the token's accessor is %q, not the id that was asked for", token.Accessor)
			case token.Subject != subject(name):
				return "", fmt.Errorf("the token is for %+v", token.Subject)
			}
			secret = s
			r.asksFor(r.real(), asked(id, name), s)
			return fmt.Sprintf("token %s with the secret %x", token.Accessor, digest(s)), nil
		}},
		{name: "Read", do: func(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
			token, err := identity.NewClient(conn).Read(ctx, r.cfg.Consul, secret)
			if err == nil && token.Accessor != id {
				err = fmt.Errorf("it reads the token %q", token.Accessor)
			}
			return token.Accessor, err
		}},
		{name: "Revoke", undo: true, do: func(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
			return "", identity.NewClient(conn).Revoke(ctx, r.cfg.Consul, asked(id, name), secret)
		}},
	}, nil
}

var registrationKind = &kind{
	service: registrationv1.File_pannier_plugin_registration_v1_registration_proto.Services().ByName(
		"RegistrationService"),
	// An owner that has registered nothing.
	ask: func(ctx context.Context, conn grpc.ClientConnInterface, at backend) (string, error) {
		req := registration.SyncRequest{Owner: registration.Owner{Cluster: theCluster, Node: "nobodys"}}
		_, changes, err := registration.NewClient(conn).Sync(ctx, at.consul, req)
		return fmt.Sprint(changes), err
	},
	methods: []method{
		{"Register", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
			i := markedInstance(at, name)
			_, err := registration.NewClient(conn).Register(ctx, at.consul, i)
			at.registers(i, err)
			return err
		}},
		{"Deregister", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
			i := instance(name)
			return registration.NewClient(conn).Deregister(ctx, at.consul, i.Owner, i.ID)
		}},
		{"Sync", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
			i := markedInstance(at, name)
			_, _, err := registration.NewClient(conn).Sync(ctx, at.consul,
				registration.SyncRequest{Owner: i.Owner, Instances: []registration.Instance{i}})
			at.registers(i, err)
			return err
		}},
		{"Heartbeat", func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
			return registration.NewClient(conn).Heartbeat(ctx, at.consul,
				[]registration.Beat{{ID: instance(name).ID, Healthy: true}})
		}},
	},
	missing: needsBackend,
	job:     registrationJob,
	final: func(ctx context.Context, conn grpc.ClientConnInterface, at backend) error {
		i := instance("gone")
		return registration.NewClient(conn).Deregister(ctx, at.consul, i.Owner, i.ID)
	},
}

func instance(name string) registration.Instance {
	return registration.Instance{
		ID:    "pannier:" + name + ":default:" + name + ":web",
		Owner: registration.Owner{Cluster: theCluster, Node: name}, Namespace: "default", Workload: name,
		Service: service.Service{
			Name: "web", Port: "8080", Tags: []string{"conformance"},
			Checks:  []service.Check{{Name: "alive", Type: service.CheckProcess, Interval: "1h"}},
			Connect: &service.Connect{SidecarService: &service.SidecarService{}},
		},
	}
}

// markedInstance returns an instance whose check has a secret in a header.
func markedInstance(at backend, name string) registration.Instance {
	i := instance(name)
	i.Service.Checks = append(i.Service.Checks, service.Check{
		Name: "page", Type: service.CheckHTTP, Path: "/", Interval: "1h", Timeout: "1s",
		Header: map[string]service.HeaderValues{"Authorization": {Values: []string{at.marker + "-header"}}},
	})
	return i
}

// registers records an instance that a call has registered, or may have.
func (b backend) registers(i registration.Instance, err error) {
	if err != nil && !b.r.cfg.OwnBackend {
		return
	}
	b.r.makes("service "+i.ID, func(ctx context.Context, p *process) error {
		return insist(ctx, func(ctx context.Context) error {
			client := registration.NewClient(p.conn)
			if err := client.Deregister(ctx, b.consul, i.Owner, i.ID); err != nil {
				return err
			}
			_, changes, err := client.Sync(ctx, b.consul, registration.SyncRequest{Owner: i.Owner})
			if err == nil && len(changes) > 0 {
				err = fmt.Errorf("it was not removed by Deregister: Sync says %v", changes)
			}
			return err
		})
	})
}

func registrationJob(_ context.Context, r *run, _ grpc.ClientConnInterface, name string) ([]step, error) {
	i := instance(name)
	r.real().registers(i, nil)
	return []step{
		{name: "Register", do: func(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
			proxy, err := registration.NewClient(conn).Register(ctx, r.cfg.Consul, i)
			if err == nil && proxy == "" {
				err = fmt.Errorf("it returns no proxy for a service with a sidecar")
			}
			return proxy, err
		}},
		{name: "Heartbeat", do: func(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
			return "", registration.NewClient(conn).Heartbeat(ctx, r.cfg.Consul,
				[]registration.Beat{{ID: i.ID, Healthy: true, Output: "alive"}})
		}},
		{name: "Sync", do: func(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
			req := registration.SyncRequest{Owner: i.Owner, Instances: []registration.Instance{i}}
			_, changes, err := registration.NewClient(conn).Sync(ctx, r.cfg.Consul, req)
			if err == nil && len(changes) > 0 {
				err = fmt.Errorf("it changes what was just registered: %v", changes)
			}
			return "", err
		}},
		{name: "Deregister", undo: true, do: func(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
			return "", registration.NewClient(conn).Deregister(ctx, r.cfg.Consul, i.Owner, i.ID)
		}},
		{name: "Sync of nothing", undo: true, do: func(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
			_, changes, err := registration.NewClient(conn).Sync(ctx, r.cfg.Consul, registration.SyncRequest{Owner: i.Owner})
			if err == nil && len(changes) > 0 {
				err = fmt.Errorf("what was deregistered is still there: %v", changes)
			}
			return "", err
		}},
	}, nil
}

var bootstrapKind = &kind{
	service: bootstrapv1.File_pannier_plugin_bootstrap_v1_bootstrap_proto.Services().ByName("BootstrapService"),
	ask: func(ctx context.Context, conn grpc.ClientConnInterface, at backend) (string, error) {
		req := bootstrapRequest(at.proxy, at.patience)
		req.TokenFile = at.consul.TokenFile
		req.Admin.Port++ // distinguishes it from the work in the kit's own tests
		out, err := bootstrap.NewClient(conn).Generate(ctx, at.consul, req)
		return fmt.Sprintf("%x", digest(string(out.Bootstrap))), err
	},
	methods: []method{{
		"Generate",
		func(ctx context.Context, conn grpc.ClientConnInterface, at backend, name string) error {
			req := bootstrapRequest(name, hopeless/2)
			req.TokenFile = at.consul.TokenFile
			_, err := bootstrap.NewClient(conn).Generate(ctx, at.consul, req)
			return err
		},
	}},
	missing: func(cfg *Config) string {
		if why := needsConsul(cfg); why != "" {
			return why
		}
		if cfg.ProxyID == "" {
			return "needs a proxy that is registered in the Consul (-proxy ID, Config.ProxyID)"
		}
		return ""
	},
	final: func(ctx context.Context, conn grpc.ClientConnInterface, at backend) error {
		_, err := bootstrap.NewClient(conn).Generate(ctx, at.consul, bootstrapRequest("gone", callTime))
		return err
	},
	job: func(_ context.Context, r *run, _ grpc.ClientConnInterface, _ string) ([]step, error) {
		return []step{{name: "Generate", do: func(ctx context.Context, conn grpc.ClientConnInterface) (string, error) {
			req := bootstrapRequest(r.cfg.ProxyID, callTime)
			req.TokenFile = r.cfg.Consul.TokenFile
			out, err := bootstrap.NewClient(conn).Generate(ctx, r.cfg.Consul, req)
			if err == nil && !json.Valid(out.Bootstrap) {
				err = fmt.Errorf("the bootstrap is not JSON")
			}
			return fmt.Sprintf("%d bytes, %x", len(out.Bootstrap), digest(string(out.Bootstrap))), err // it contains a secret
		}}}, nil
	},
	refusals: []refusal{{
		"to generate with a token file that cannot be read", codes.FailedPrecondition,
		func(ctx context.Context, r *run, conn grpc.ClientConnInterface) error {
			req := bootstrapRequest(r.cfg.ProxyID, callTime)
			req.TokenFile = filepath.Join(r.dir, "no-such-token")
			_, err := bootstrap.NewClient(conn).Generate(ctx, r.cfg.Consul, req)
			return err
		},
	}},
}

func bootstrapRequest(proxy string, wait time.Duration) bootstrap.Request {
	return bootstrap.Request{ProxyID: proxy, Admin: bootstrap.Bind{Address: "127.0.0.1", Port: 19000}, Wait: wait}
}
