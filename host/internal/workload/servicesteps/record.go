package servicesteps

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/workload/step"
	"github.com/pannier/pannier/sdk/service"
)

// Record is what the journal keeps of one service of a workload, with all that undoing it needs.
// No secret is in it.
type Record struct {
	Steps map[string]step.Progress `json:"steps"`

	// Set when the workload begins.
	ID        string          `json:"id"`      // in Consul
	Service   service.Service `json:"service"` // ports are numbers, and no variable is left
	AdminPort int             `json:"admin_port,omitempty"`
	ReadyPort int             `json:"ready_port,omitempty"`
	Token     claim.Token     `json:"token,omitzero"` // without an accessor: not derived yet

	// Set by register. Registered is what Consul has; after a change of the spec Service differs
	// from it.
	Registered *service.Service `json:"registered,omitempty"`
	ProxyID    string           `json:"proxy_id,omitempty"`

	// Set by identify. Next is to replace Token; Former were replaced and are to be revoked.
	IssuedAt time.Time     `json:"issued_at,omitzero"`
	Next     claim.Token   `json:"next,omitzero"`
	Former   []claim.Token `json:"former,omitempty"`

	// Unmade are the IDs of those tokens that Consul has not made, set when the workload is released.
	Unmade []string `json:"unmade,omitempty"`

	// Digests of the files that were written last; empty: none.
	TokenSum string `json:"token_sum,omitempty"`
	// BootstrapSums are the checksums of the bootstrap and the files that it names, by their names.
	BootstrapSums map[string]string `json:"bootstrap_sums,omitempty"`
	// Remake counts the changes after which the bootstrap is to be made again; 0: none.
	Remake int `json:"remake,omitempty"`
	// ProxyDigest is the digest of the proxy's configuration in Consul that the host knows; empty: none yet.
	ProxyDigest string `json:"proxy_digest,omitempty"`
}

// NewRecord is the record of a resolved service that no step was taken for yet.
func (s *Steps) NewRecord(ref claim.WorkloadRef, svc service.Service) *Record {
	rec := &Record{
		Steps: map[string]step.Progress{}, Service: svc,
		ID: fmt.Sprintf("pannier:%s:%s:%s:%s", s.Node, ref.Namespace, ref.ID, svc.Name), // unique on its agent
	}
	if svc.Identified() {
		rec.Token = s.newToken(ref, svc.Name, svc.Consul)
	}
	return rec
}

// newToken is a token that neither the ledger nor Consul has yet. Its ID is a random UUID (RFC
// 9562, version 4).
func (s *Steps) newToken(ref claim.WorkloadRef, service, consul string) claim.Token {
	var b [16]byte
	_, _ = rand.Read(b[:]) // it never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	id := fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
	return claim.Token{ID: id, Workload: ref, Node: s.Node, Service: service, Consul: consul}
}

// tokens are all that Consul may have for the service.
func (r *Record) tokens() (all []claim.Token) {
	for _, t := range append([]claim.Token{r.Token, r.Next}, r.Former...) {
		if t.ID != "" {
			all = append(all, t)
		}
	}
	return all
}
