// Package acls answers the API's calls about ACL policies, roles and tokens. A token's secret is in the answer that
// makes it, and nowhere else.
package acls
