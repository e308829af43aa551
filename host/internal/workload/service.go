package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/consul/secretsdir"
)

// The files in a service's folder.
const (
	tokenFile     = "si_token"
	bootstrapFile = "envoy_bootstrap.json"
)

// svc is one service of a workload while the host works on it.
type svc struct {
	*serviceRecord
	// These stay as they are, whatever becomes of the spec.
	name    string
	consul  string // the name of the agent's consul block
	meshed  bool
	proxied bool

	// secrets of tokens that are in no file, by token ID: only the host's memory has them.
	// The goroutine that takes the service's steps uses it.
	secrets map[string]string

	// What keeps it from being as it should; instance.mu guards it.
	problems map[activity]string
}

// activity is what may fail for a service that runs.
type activity string

const (
	identifying activity = "identity"
	registering activity = "registration"
)

func newSvc(rec *serviceRecord) *svc {
	return &svc{
		serviceRecord: rec, name: rec.Service.Name, consul: rec.Service.Consul,
		meshed: rec.Service.Connect != nil, proxied: rec.Service.Proxied(),
		secrets: map[string]string{}, problems: map[activity]string{},
	}
}

// serviceID is a service's in Consul, unique on its agent.
func serviceID(node string, ref claim.WorkloadRef, name string) string {
	return fmt.Sprintf("pannier:%s:%s:%s:%s", node, ref.Namespace, ref.ID, name)
}

// place is the service's folder for files with secrets.
func (r *run) place(s *svc) secretsdir.Place {
	return secretsdir.Place{Namespace: r.ref.Namespace, Workload: r.ref.ID, Service: s.name}
}

// digest of a file tells later whether it is what was written.
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// status is how the service stands; dir is the folder of the workload's secrets.
// instance.mu is held.
func (s *svc) status(dir string) ServiceStatus {
	st := ServiceStatus{
		Name: s.name, ID: s.ID, ProxyID: s.ProxyID, Consul: s.consul, Port: number(s.Service.Port),
		Accessor: s.Token.Accessor, ExpiresAt: s.Token.ExpiresAt, AdminPort: s.AdminPort, ReadyPort: s.ReadyPort,
	}
	if s.TokenSum != "" {
		st.TokenFile = filepath.Join(dir, s.name, tokenFile)
	}
	if s.BootstrapSum != "" {
		st.BootstrapFile = filepath.Join(dir, s.name, bootstrapFile)
	}
	var all []string
	for _, what := range []activity{registering, identifying} {
		if p := s.problems[what]; p != "" {
			all = append(all, p)
		}
	}
	st.Message = strings.Join(all, "; ")
	return st
}
