package drivers

import (
	"fmt"
	"slices"

	"github.com/pannier/pannier/internal/errcode"
)

// EphemeralVolumes says for whom a driver makes volumes of one workload: such a volume is made when it is published,
// and is gone when it is unpublished. CSI has no capability for this; it is Kubernetes' convention, "CSI ephemeral
// inline volumes". A driver without it may mount anything at such a call, so its operator opens it.
type EphemeralVolumes struct {
	// Namespaces whose workloads may have such volumes; empty: all.
	Namespaces []string `json:"namespaces,omitempty"`
	// Secrets are file:// references, which are read for each call and stored nowhere.
	Secrets map[string]string `json:"secrets,omitempty"`
}

func (e *EphemeralVolumes) secrets() map[string]string {
	if e == nil {
		return nil
	}
	return e.Secrets
}

// ErrNotEphemeral means that a driver's operator has not opened it for ephemeral volumes.
var ErrNotEphemeral = errcode.FailedPrecondition.New("the driver is not open for ephemeral volumes")

// CheckEphemeral returns ErrNotEphemeral unless workloads of the namespace may have volumes that the driver makes for
// them.
func (s Spec) CheckEphemeral(namespace string) error {
	switch e := s.EphemeralVolumes; {
	case e == nil:
		return fmt.Errorf("%w: driver %q: have root write ephemeral_volumes {} in the block csi_driver %q of the agent's "+
			"configuration, if the driver supports them", ErrNotEphemeral, s.ID, s.ID)
	case len(e.Namespaces) > 0 && !slices.Contains(e.Namespaces, namespace):
		return fmt.Errorf("%w in the namespace %q: driver %q: have root add it to namespaces in ephemeral_volumes, in the block "+
			"csi_driver %q of the agent's configuration", ErrNotEphemeral, namespace, s.ID, s.ID)
	}
	return nil
}

// EphemeralSecrets reads the secrets that the driver gets when it publishes an ephemeral volume.
func (s Spec) EphemeralSecrets(readSecret func(ref string) (string, error)) (map[string]string, error) {
	out := map[string]string{}
	for name, ref := range s.EphemeralVolumes.secrets() {
		value, err := readSecret(ref)
		if err != nil {
			return nil, fmt.Errorf("driver %q: ephemeral_volumes: secrets: %s: %w", s.ID, name, err)
		}
		out[name] = value
	}
	return out, nil
}
