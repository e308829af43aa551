package servicesteps

import (
	"fmt"
	"path/filepath"

	"github.com/pannier/pannier/host/internal/consul/secretsdir"
)

// Credential is a secret of a service that a unit may load.
type Credential struct {
	Name string // SERVICE.FILE: the names of credentials have no slash
	File string // its path on the host
	sum  string
}

// Credentials are the secrets that the service has; dir is the folder of the workload's secrets. The workload's lock is
// held.
func (s *Service) Credentials(dir string) (all []Credential) {
	for _, c := range []Credential{
		{Name: s.Name + "." + tokenFile, File: filepath.Join(dir, s.Name, tokenFile), sum: s.TokenSum},
		{Name: s.Name + "." + bootstrapFile, File: filepath.Join(dir, s.Name, bootstrapFile), sum: s.BootstrapSums[bootstrapFile]},
	} {
		if c.sum != "" {
			all = append(all, c)
		}
	}
	return all
}

// ReadCredential reads one of the service's credentials. It fails where the file is not what was written. The
// workload's lock is held.
func (s *Steps) ReadCredential(svc *Service, c Credential) ([]byte, error) {
	raw, err := s.SecretsDir.Read(svc.place(), filepath.Base(c.File), svc.uid)
	if err != nil {
		return nil, err
	}
	if digest(raw) != c.sum {
		return nil, fmt.Errorf("%s: %w: its content was not written by the host", c.File, secretsdir.ErrForeign)
	}
	return raw, nil
}
