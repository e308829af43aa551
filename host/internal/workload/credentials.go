package workload

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/workload/servicesteps"
	"github.com/pannier/pannier/internal/errcode"
)

// ErrNoCredential means that a unit may not load a credential.
var ErrNoCredential = errcode.PermissionDenied.New("no credential")

// Credential returns a secret for a unit of this node: the secret of the one workload that runs here and whose spec
// names the unit, and which has a secret of this name. ErrNoCredential: there is none, and what to do.
func (r *Registered) Credential(unit, name string) (secret []byte, of claim.WorkloadRef, err error) {
	var reasons []string
	var found []*instance
	for _, i := range r.known.all() {
		var named, is bool
		i.View(func() {
			if named = slices.Contains(i.rec.Spec.Units, unit); named {
				_, _, err := i.credential(name)
				if is = err == nil; !is {
					reasons = append(reasons, err.Error())
				}
			}
		})
		if is {
			found = append(found, i)
		}
	}
	switch {
	case len(found) > 1:
		return nil, of, fmt.Errorf("%w: the unit is in the specs of workloads %q and %q, which both have it: leave it out of one",
			ErrNoCredential, found[0].ref, found[1].ref)
	case len(found) == 1:
	case len(reasons) > 0:
		slices.Sort(reasons)
		return nil, of, fmt.Errorf("%w: %s", ErrNoCredential, strings.Join(reasons, "; "))
	default:
		return nil, of, fmt.Errorf("%w: no workload of this node is the unit's: write units = [%q] into the workload's spec, and "+
			"run: pannier workload start SPEC", ErrNoCredential, unit)
	}
	i := found[0]
	i.View(func() {
		var svc *servicesteps.Service
		var c servicesteps.Credential
		if svc, c, err = i.credential(name); err == nil {
			secret, err = r.services.ReadCredential(svc, c)
		}
	})
	return secret, i.ref, err
}

// credential finds a secret of the workload. i.mu is held.
func (i *instance) credential(name string) (*servicesteps.Service, servicesteps.Credential, error) {
	if state := i.shownState(); state != Running && state != Unknown {
		return nil, servicesteps.Credential{}, fmt.Errorf("%s is %s: the unit needs Requires= and After=pannier-workload@%s.service",
			i, state, i.ref.ID)
	}
	var names []string
	for _, s := range i.services {
		for _, c := range s.Credentials(i.secrets) {
			if c.Name == name {
				return s, c, nil
			}
			names = append(names, c.Name)
		}
	}
	return nil, servicesteps.Credential{}, fmt.Errorf("%s has no such secret, only %q: change LoadCredential=", i, names)
}
