"""The kubelet's gRPC interfaces: ``.proto`` files written from the published field tables
(``kubernetes-dra`` reference: registration, DRA v1 and v1beta1, device health) and the code
generated from them by ``make proto``. Do not edit the generated files."""
