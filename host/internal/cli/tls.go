package cli

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pannier/pannier/host/internal/peer/pki"
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

func (a *App) tlsCommand() *cobra.Command {
	return a.Noun("tls", "Certificates of hosts",
		a.Noun("ca", "The authority that signs them", a.tlsCACreate()),
		a.Noun("cert", "Certificates of servers, nodes and callers", a.tlsCertCreate(), a.tlsCertInspect()))
}

// tlsFromEnvironment returns the settings for calls over https.
func tlsFromEnvironment() api.TLS {
	return api.TLS{
		CAFile: os.Getenv("PANNIER_CACERT"), CertFile: os.Getenv("PANNIER_CLIENT_CERT"), KeyFile: os.Getenv(
			"PANNIER_CLIENT_KEY"),
		ServerName: os.Getenv("PANNIER_TLS_SERVER_NAME"),
	}
}

func (a *App) tlsCACreate() *cobra.Command {
	var dir string
	var days int
	cmd := &cobra.Command{
		Use: "create", Short: "Make a certificate authority, once for a cluster",
		Long: `Make a certificate authority, once for a cluster. Its certificate (ca.pem) goes to every
host, as tls { ca_file }. Whoever has its key (ca-key.pem) can be every host: keep it off
them. No file is overwritten. It needs no agent.`,
		RunE: a.Do(func(context.Context, []string) error {
			validity, err := validity(days)
			if err != nil {
				return err
			}
			made, err := pki.NewAuthority(validity)
			if err != nil {
				return err
			}
			cert, key := filepath.Join(dir, authorityFile), filepath.Join(dir, authorityKeyFile)
			if err := made.Write(cert, key); err != nil {
				return refused(err)
			}
			return a.showMade(cert, key)
		}),
	}
	cmd.Flags().StringVar(&dir, "dir", ".", "the `FOLDER` for the files")
	cmd.Flags().IntVar(&days, "days", authorityDays, "for how many days (`N`) it is valid")
	return cmd
}

// certFlags describe the certificate to make.
type certFlags struct {
	server, node, cli            bool
	name, datacenter             string
	dns, ip                      []string
	days                         int
	authority, authorityKey, dir string
}

func (a *App) tlsCertCreate() *cobra.Command {
	var f certFlags
	cmd := &cobra.Command{
		Use: "create -server|-node|-cli -name NAME", Short: "Make a certificate and its key",
		Long: `Make a certificate and its key, in DATACENTER-ROLE-NAME.pem and -key.pem. The role says
what its holder may do:

  -server  keep the ledger, and all that a node may
  -node    run workloads
  -cli     call the API over TCP

The name of a server or a node is its name in the agent's configuration. No file is
overwritten. It needs no agent.`,
		Example: "pannier tls cert create -node -name web-1",
		RunE:    a.Do(func(context.Context, []string) error { return a.createCert(&f) }),
	}
	flags := cmd.Flags()
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
	require(cmd, "name")
	return cmd
}

func (a *App) createCert(f *certFlags) error {
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
	cert, key := base+".pem", base+"-key.pem"
	if err := made.Write(cert, key); err != nil {
		return refused(err)
	}
	return a.showMade(cert, key)
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

// showMade names the files that were made.
func (a *App) showMade(cert, key string) error {
	t := NewTable("FILE", "WHAT")
	t.Row(cert, "certificate")
	t.Row(key, "private key")
	return a.Print(struct {
		Cert string `json:"cert_file"`
		Key  string `json:"key_file"`
	}{cert, key}, nil, func() { a.Show(t) })
}

func (a *App) tlsCertInspect() *cobra.Command {
	return &cobra.Command{
		Use: "inspect FILE", Short: "Show whose a certificate is, and until when",
		Long: `Show whose a certificate is, and until when. The exit code is 4 when no agent would accept
it.`,
		Example: "pannier tls cert inspect dc1-node-web-1.pem",
		RunE: a.Do(func(_ context.Context, args []string) error {
			d, err := pki.Describe(args[0])
			if err != nil {
				return err
			}
			if err := a.showCert(d); err != nil || d.Problem == "" {
				return err
			}
			return refused(fmt.Errorf("no agent accepts this certificate: %s", d.Problem))
		}),
	}
}

func (a *App) showCert(d pki.Description) error {
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
	return a.Print(cert, nil, func() { a.Show(t) })
}
