package servicesteps

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/pannier/pannier/host/internal/system/failpoint"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/sdk/bootstrap"
	"github.com/pannier/pannier/sdk/registration"
	"github.com/pannier/pannier/sdk/service"
)

// Register registers the service and its sidecar in Consul, as the spec has them now.
func (s *Steps) Register(ctx context.Context, svc *Service) error {
	var i registration.Instance
	revoked := false // its intentions
	svc.workload.View(func() {
		i = svc.instance(svc.Service)
		revoked = len(i.Service.Intentions) == 0 && svc.intended()
	})
	var proxyID string
	refused := true // each time
	err := s.Limits.Retry.Retry(ctx, s.Limits.Register, step.Retryable, func(ctx context.Context) (err error) {
		proxyID, err = s.Services.Register(ctx, svc.Consul, i)
		refused = refused && step.Definite(err)
		if err == nil && revoked {
			return s.Services.SetIntentions(ctx, svc.Consul, i)
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("register %s: %w", svc, err)
		if refused {
			return step.NoEffect(err)
		}
		return err
	}
	svc.workload.Update(func() { svc.Registered, svc.ProxyID = &i.Service, proxyID })
	s.Services.Changed()
	return nil
}

// Deregister removes the service and its sidecar from Consul.
func (s *Steps) Deregister(ctx context.Context, svc *Service) error {
	ctx, cancel := context.WithTimeout(ctx, s.Limits.Release)
	defer cancel()
	if err := s.Services.Deregister(ctx, svc.Consul, svc.ID); err != nil {
		err = fmt.Errorf("deregister %s: %w", svc, err)
		if err = s.leave(ctx, svc, "registration", svc.ID, err); err != nil {
			return err
		}
	}
	if err := s.revokeIntentions(ctx, svc); err != nil {
		return err
	}
	svc.workload.Update(func() { svc.Registered, svc.ProxyID = nil, "" })
	s.Services.Changed()
	return nil
}

// revokeIntentions takes back what a service that is not registered any more has said about its callers.
func (s *Steps) revokeIntentions(ctx context.Context, svc *Service) error {
	var i registration.Instance
	intended := false
	svc.workload.View(func() { i, intended = svc.instance(svc.Service), svc.intended() })
	if !intended {
		return nil
	}
	i.Service.Intentions = nil
	if err := s.Services.SetIntentions(ctx, svc.Consul, i); err != nil {
		err = fmt.Errorf("take back the intentions of %s in Consul %q: %w", svc, svc.Consul, err)
		return s.leave(ctx, svc, "intentions", svc.Name, err)
	}
	return nil
}

// intended reports that Consul may have intentions of the service. The workload's lock is held.
func (s *Service) intended() bool {
	return len(s.Service.Intentions) > 0 || s.Registered != nil && len(s.Registered.Intentions) > 0
}

// Instance is the service as it is registered in Consul. It must be registered, and the
// workload's lock is held.
func (s *Service) Instance() registration.Instance { return s.instance(*s.Registered) }

func (s *Service) instance(as service.Service) registration.Instance {
	ref := s.workload.Ref()
	i := registration.Instance{ID: s.ID, Namespace: ref.Namespace, Workload: ref.ID, Service: as}
	if s.proxied {
		i.ProxyDigest = cmp.Or(s.ProxyDigest, "unknown")
	}
	return i
}

func (s *Service) String() string {
	return fmt.Sprintf("service %q of workload %q", s.Name, s.workload.Ref())
}

// proxyAddress is where a proxy serves its admin API and its readiness, for this node alone.
const proxyAddress = "127.0.0.1"

// Bootstrap makes the file that the service's proxy is started with, and the files with the token and the CA that the
// proxy reads again when they change. Units get a copy of the bootstrap, so it contains both. The token is the one that
// identify has written; where Consul has ACLs disabled there is none.
func (s *Steps) Bootstrap(ctx context.Context, svc *Service) error {
	var req bootstrap.Request
	var asked int
	svc.workload.View(func() {
		if !svc.Stale() { // else it is made again when Consul has the changed registration
			asked = svc.Remake
		}
		req.ProxyID = svc.ProxyID
		if !svc.workload.LoadedByUnits() {
			req.Dir = s.SecretsDir.Folder(svc.place())
		}
		switch {
		case svc.AdminPort != 0:
			req.Admin = bootstrap.Bind{Address: proxyAddress, Port: svc.AdminPort}
			req.Ready = bootstrap.Bind{Address: proxyAddress, Port: svc.ReadyPort}
		case svc.administered():
			folder := s.SecretsDir.Workload(svc.place())
			req.Admin = bootstrap.Unix(svc.socket(folder, adminSocket))
			req.Ready = bootstrap.Unix(svc.socket(folder, readySocket))
		}
	})
	if svc.TokenSum != "" {
		req.TokenFile = s.SecretsDir.Path(svc.place(), tokenFile)
	}
	var made bootstrap.Result
	err := s.Limits.Retry.Retry(ctx, s.Limits.Bootstrap, step.Retryable, func(ctx context.Context) (err error) {
		made, err = s.Services.Bootstrap(ctx, svc.Consul, req)
		return err
	})
	if err == nil {
		err = s.writeBootstrap(svc, made)
	}
	if err != nil {
		return fmt.Errorf("make the bootstrap of %s: %w", svc, err)
	}
	if asked == 0 {
		return nil
	}
	return svc.workload.Save(func() {
		if svc.Remake == asked { // else its inputs have changed meanwhile
			svc.Remake = 0
		}
	})
}

// writeBootstrap replaces those files that differ: the proxy is restarted when its bootstrap is replaced, which comes
// last.
func (s *Steps) writeBootstrap(svc *Service, made bootstrap.Result) error {
	sums := map[string]string{bootstrapFile: digest(made.Bootstrap)}
	for name, data := range made.Files {
		if name == bootstrapFile || name == tokenFile {
			return fmt.Errorf("the plugin gives a file beside it the name %q, which is taken", name)
		}
		sums[name] = digest(data)
	}
	if !maps.Equal(sums, svc.BootstrapSums) {
		if err := svc.workload.Save(func() { svc.BootstrapSums = sums }); err != nil {
			return err
		}
		failpoint.Here("bootstrap", "made")
	}
	for _, name := range append(slices.Sorted(maps.Keys(made.Files)), bootstrapFile) {
		if s.written(svc, name) {
			continue
		}
		data, beside := made.Files[name]
		if !beside {
			data = made.Bootstrap
		}
		if err := s.SecretsDir.Write(svc.place(), name, data, svc.uid); err != nil {
			return err
		}
		failpoint.Here("bootstrap", "written")
	}
	return nil
}

// Renew makes the bootstrap of a running workload's service again where that was asked for. The file is replaced if it
// differs.
func (s *Steps) Renew(ctx context.Context, svc *Service) error {
	if !svc.outdatedBootstrap() {
		return nil // also while its files are kept busy by a Consul that is away
	}
	return s.repair(ctx, svc)
}

// outdatedBootstrap reports that the bootstrap is to be made again, and can be: Consul has what it is made from.
func (s *Service) outdatedBootstrap() (is bool) {
	s.workload.View(func() { is = s.Remake > 0 && !s.Stale() })
	return is
}

// Stale reports that Consul does not have the service as the spec has it. The workload's lock is held.
func (s *Service) Stale() bool {
	return s.Registers() && (s.Registered == nil || !SameJSON(*s.Registered, s.Service))
}

// SameJSON compares by the journal's encoding, in which an empty list and none are the same.
func SameJSON(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	empty := func(raw []byte) bool { return slices.Contains([]string{"null", "[]"}, string(raw)) }
	return errX == nil && errY == nil && (bytes.Equal(x, y) || empty(x) && empty(y))
}

// administered is true if the proxy has an admin API on a socket.
func (s *Service) administered() bool {
	return s.proxied && s.AdminPort == 0 && s.Service.Connect.Admin != service.AdminNone
}

// socket is the path of one of the proxy's sockets; dir is the folder of the workload's secrets.
func (s *Service) socket(dir, name string) string { return filepath.Join(dir, s.Name, name) }

// RemoveBootstrap removes the files.
func (s *Steps) RemoveBootstrap(_ context.Context, svc *Service) error {
	for name := range svc.BootstrapSums {
		if err := s.SecretsDir.RemoveFile(svc.place(), name); err != nil {
			return fmt.Errorf("remove the bootstrap of %s: %w", svc, err)
		}
	}
	svc.workload.Update(func() { svc.BootstrapSums = nil })
	return nil
}

// bootstrapped reports whether the files are what was written.
func (s *Steps) bootstrapped(svc *Service) bool {
	for name := range svc.BootstrapSums {
		if !s.written(svc, name) {
			return false
		}
	}
	return len(svc.BootstrapSums) > 0
}

// written reports whether a file of the bootstrap is what the journal says.
func (s *Steps) written(svc *Service, name string) bool {
	raw, err := s.SecretsDir.Read(svc.place(), name, svc.uid)
	return err == nil && digest(raw) == svc.BootstrapSums[name]
}
