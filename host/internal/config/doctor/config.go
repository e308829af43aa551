package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/internal/cabundle"
	"github.com/pannier/pannier/internal/printable"
)

func (p *Patient) configuration(context.Context) []Finding {
	switch {
	case p.ConfigErr != nil:
		return one(Fail, strings.ReplaceAll(p.ConfigErr.Error(), "\n", "; "), "pannier agent -config PATH -check")
	case p.Config == nil:
		return skipped("no configuration was found: give -config")
	default:
		return ok("it is valid")
	}
}

// expiry is how long before its end a certificate should be replaced.
const expiry = 30 * 24 * time.Hour

func (p *Patient) certificates(context.Context) []Finding {
	var files []string
	if t := p.Config.TLS; t != nil {
		files = append(files, t.CA, t.Cert)
	}
	for _, c := range p.Config.Consuls {
		if c.CertFile != "" {
			files = append(files, c.CertFile)
		}
		if c.CAFile == "" {
			continue
		}
		authorities, err := cabundle.Files(c.CAFile)
		if err != nil {
			authorities = []string{c.CAFile} // its check says why
		}
		files = append(files, authorities...)
	}
	if len(files) == 0 {
		return skipped("none is configured")
	}
	var problems []Finding
	for _, f := range files {
		problems = append(problems, checkCertificate(f, p.Config.TLS)...)
	}
	return or(problems, "%s, all good for %d days", printable.Count(len(files), "file"), int(expiry.Hours())/24)
}

// checkCertificate also judges others' certificates, which need not name an agent.
func checkCertificate(file string, own *pki.Files) []Finding {
	inspect := "pannier tls cert inspect " + file
	d, err := pki.Describe(file)
	left := time.Until(d.NotAfter)
	switch {
	case err != nil:
		return one(Fail, err.Error(), inspect)
	case left <= 0, time.Now().Before(d.NotBefore), d.Problem != "" && own != nil && file == own.Cert:
		return one(Fail, file+": "+d.Problem, inspect)
	case left < expiry:
		return one(Warn, fmt.Sprintf("%s expires on %s", file, d.NotAfter.Local().Format(time.DateTime)), inspect)
	default:
		return nil
	}
}
