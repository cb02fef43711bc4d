"""Problems whose constants are known: quadratics, sums of cosines."""
