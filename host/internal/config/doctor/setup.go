package doctor

import (
	"context"
	"errors"
	"fmt"

	"github.com/pannier/pannier/internal/printable"
)

// ErrNoManagement means that no token is known that may read Consul's ACLs.
var ErrNoManagement = errors.New(`needs a token with acl = "write" in CONSUL_HTTP_TOKEN or CONSUL_HTTP_TOKEN_FILE`)

// SetupStep is an object of a Consul's ACLs, and what was found and done. Wrong: it is not as it should be.
type SetupStep struct {
	Object string `json:"object"`
	Text   string `json:"text"`
	Wrong  bool   `json:"wrong,omitempty"`
}

// consulACLs checks what pannier setup consul has made. ACLs that were made by hand or by other tools are their
// owner's matter.
func (p *Patient) consulACLs(ctx context.Context) []Finding {
	if p.CheckSetup == nil {
		return skipped("pannier doctor checks them, with a token that may read them")
	}
	var all []Finding
	for _, c := range p.Config.Consuls {
		if c.IdentityOnly {
			continue
		}
		steps, err := p.CheckSetup(ctx, c.Name)
		if errors.Is(err, ErrNoManagement) {
			return skipped("%v", err)
		}
		all = append(all, setupFindings(c.Name, c.Block(), steps, err)...)
	}
	if len(all) == 0 {
		return skipped("no consul block is configured")
	}
	return all
}

func setupFindings(name, block string, steps []SetupStep, err error) (problems []Finding) {
	well := 0
	for _, s := range steps {
		if !s.Wrong {
			well++
			continue
		}
		problems = append(problems, one(Warn, fmt.Sprintf("%s: %s %s", block, s.Object, s.Text),
			"pannier setup consul -consul "+name)...)
	}
	switch {
	case well == 0 && len(steps) > 0:
		return skipped("%s: pannier setup consul has not made them", block)
	case err != nil && well == 0:
		return skipped("%s: %v", block, err)
	case err != nil:
		problems = append(problems, one(Warn, fmt.Sprintf("%s: %v", block, err), "pannier setup consul -check -consul "+name)...)
	}
	return or(problems, "%s: %s as pannier setup consul makes them", block, printable.Count(well, "object"))
}
