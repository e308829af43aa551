package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/sdk/api"
)

// The defaults of flags: the files of an authority, and for how many days certificates are
// valid.
const (
	authorityFile, authorityKeyFile = "ca.pem", "ca-key.pem"
	authorityDays, certificateDays  = 3650, 365
	// maxDays is a hundred years.
	maxDays = 36500
)

func tlsNoun() noun {
	return nounOf("tls", "Certificates of hosts", nil,
		nounOf("ca", "The authority that signs them", []verb{authorityVerb()}),
		nounOf("cert", "Certificates of servers, nodes and callers", []verb{certVerb(), {
			use: "inspect FILE", short: "Show whose a certificate is, and until when", example: "dc1-node-web-1.pem",
			long: `Show whose a certificate is, and until when. The exit code is 4 when no agent would accept
it.`,
			local: func(_ context.Context, c *call) error {
				d, err := pki.Describe(c.args[0])
				if err != nil {
					return err
				}
				if err := showCert(c, d); err != nil || d.Problem == "" {
					return err
				}
				return refused(fmt.Errorf("no agent accepts this certificate: %s", d.Problem))
			},
		}}))
}

// tlsFromEnvironment returns the settings for calls over https.
func tlsFromEnvironment() api.TLS {
	return api.TLS{
		CAFile: os.Getenv("PANNIER_CACERT"), CertFile: os.Getenv("PANNIER_CLIENT_CERT"), KeyFile: os.Getenv(
			"PANNIER_CLIENT_KEY"),
		ServerName: os.Getenv("PANNIER_TLS_SERVER_NAME"),
	}
}

func authorityVerb() verb {
	var dir string
	var days int
	return verb{
		use: "create", short: "Make a certificate authority, once for a cluster",
		long: `Make a certificate authority, once for a cluster. Its certificate (ca.pem) goes to every
host, as tls { ca_file }. Whoever has its key (ca-key.pem) can be every host: keep it off
them. No file is overwritten. It needs no agent.`,
		flags: func(f *pflag.FlagSet) {
			f.StringVar(&dir, "dir", ".", "the `FOLDER` for the files")
			f.IntVar(&days, "days", authorityDays, "for how many days (`N`) it is valid")
		},
		local: func(_ context.Context, c *call) error {
			validity, err := validity(days)
			if err != nil {
				return err
			}
			made, err := pki.NewAuthority(validity)
			if err != nil {
				return err
			}
			return writeMade(c, made, filepath.Join(dir, authorityFile), filepath.Join(dir, authorityKeyFile))
		},
	}
}

// certFlags describe the certificate to make.
type certFlags struct {
	server, node, cli            bool
	name, datacenter             string
	dns, ip                      []string
	days                         int
	authority, authorityKey, dir string
}

func certVerb() verb {
	var cert certFlags
	return verb{
		use: "create -server|-node|-cli -name NAME", short: "Make a certificate and its key",
		long: `Make a certificate and its key, in DATACENTER-ROLE-NAME.pem and -key.pem. The role says
what its holder may do:

  -server  keep the ledger, and all that a node may
  -node    run workloads
  -cli     call the API over TCP

The name of a server or a node is its name in the agent's configuration. No file is
overwritten. It needs no agent.`,
		example: "-node -name web-1", flags: cert.flags, needs: []string{"name"},
		local: func(_ context.Context, c *call) error { return createCert(c, &cert) },
	}
}

func (f *certFlags) flags(flags *pflag.FlagSet) {
	flags.BoolVar(&f.server, "server", false, "for a server")
	flags.BoolVar(&f.node, "node", false, "for a node that is no server")
	flags.BoolVar(&f.cli, "cli", false, "for callers of the API")
	flags.StringVar(&f.name, "name", "", "whose it is: the agent's `NAME`")
	flags.StringVar(&f.datacenter, "dc", "dc1", "the `DATACENTER`, as in the agent's configuration")
	flags.StringArrayVar(&f.dns, "dns", nil, "another DNS `NAME` under which it is called; may be given more than once")
	flags.StringArrayVar(&f.ip, "ip", nil, "another IP `ADDRESS` under which it is called; may be given more than once")
	flags.IntVar(&f.days, "days", certificateDays, "for how many days (`N`) it is valid")
	flags.StringVar(&f.authority, "ca", authorityFile, "the `FILE` with the authority's certificate")
	flags.StringVar(&f.authorityKey, "ca-key", authorityKeyFile, "the `FILE` with the authority's key")
	flags.StringVar(&f.dir, "dir", ".", "the `FOLDER` for the files")
}

func createCert(c *call, f *certFlags) error {
	request, err := f.request()
	if err != nil {
		return err
	}
	authority, err := pki.ReadAuthority(f.authority, f.authorityKey)
	if err != nil {
		return err
	}
	made, err := authority.Issue(request)
	if err != nil {
		return Usage("%w", err)
	}
	base := filepath.Join(f.dir, fmt.Sprintf("%s-%s-%s", request.DC, request.Role, request.Name))
	return writeMade(c, made, base+".pem", base+"-key.pem")
}

// request returns what the flags ask for.
func (f *certFlags) request() (r pki.Request, err error) {
	roles := map[pki.Role]bool{pki.Server: f.server, pki.Node: f.node, pki.CLI: f.cli}
	for role, wanted := range roles {
		if wanted && r.Role != "" {
			return r, Usage("a certificate has one role: give -server, -node or -cli")
		}
		if wanted {
			r.Role = role
		}
	}
	if r.Role == "" {
		return r, Usage("the role is missing: give -server, -node or -cli")
	}
	r.Name, r.DC, r.DNS = f.name, f.datacenter, f.dns
	for _, text := range f.ip {
		ip := net.ParseIP(text)
		if ip == nil {
			return r, Usage("-ip: %q is not an IP address", text)
		}
		r.IP = append(r.IP, ip)
	}
	r.Validity, err = validity(f.days)
	return r, err
}

func validity(days int) (time.Duration, error) {
	if days < 1 || days > maxDays {
		return 0, Usage("-days: a whole number from 1 to %d is required, not %d", maxDays, days)
	}
	return time.Duration(days) * 24 * time.Hour, nil
}

// refused wraps an error with the exit code of a refusal.
func refused(err error) error { return Coded(ExitRefused, err) }

// writeMade writes a certificate and its key, and names the files.
func writeMade(c *call, made pki.Issued, cert, key string) error {
	if err := made.Write(cert, key); err != nil {
		return refused(err)
	}
	t := NewTable("FILE", "WHAT")
	t.Row(cert, "certificate")
	t.Row(key, "private key")
	return c.Tables(struct {
		Cert string `json:"cert_file"`
		Key  string `json:"key_file"`
	}{cert, key}, nil, t)
}

func showCert(c *call, d pki.Description) error {
	role := string(d.Identity.Role)
	if d.Authority {
		role = "authority"
	}
	cert := struct {
		Role      string    `json:"role"`
		Name      string    `json:"name"`
		DC        string    `json:"datacenter"`
		Subject   string    `json:"subject"`
		Issuer    string    `json:"issuer"`
		NotBefore time.Time `json:"not_before"`
		NotAfter  time.Time `json:"not_after"`
		DNS       []string  `json:"dns"`
		IP        []string  `json:"ip"`
	}{role, d.Identity.Name, d.Identity.DC, d.Subject, d.Issuer, d.NotBefore, d.NotAfter, append([]string{},
		d.DNS...), append([]string{}, d.IP...)}
	t := NewTable()
	t.Row("Role", role)
	t.Row("Name", d.Identity.Name)
	t.Row("Datacenter", d.Identity.DC)
	t.Row("Subject", d.Subject)
	t.Row("Issuer", d.Issuer)
	t.Row("Valid from", d.NotBefore.UTC().Format(time.RFC3339))
	t.Row("Valid until", d.NotAfter.UTC().Format(time.RFC3339))
	t.Row("DNS", strings.Join(d.DNS, ", "))
	t.Row("IP", strings.Join(d.IP, ", "))
	return c.Tables(cert, nil, t)
}
