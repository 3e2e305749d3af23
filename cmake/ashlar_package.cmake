# The Debian package of the program: cpack -G DEB. Its dependencies are computed by dpkg-shlibdeps.
set(CPACK_PACKAGE_NAME ashlar)
set(CPACK_PACKAGE_VENDOR Ashlar)
set(CPACK_PACKAGE_CONTACT "Ashlar <ashlar@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};ashlar;program;/")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
  "Router, relay and inspection of KV cache blocks for LLM inference, with manual pages and completion.")
include(CPack)
